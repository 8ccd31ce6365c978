"""Adapters in PEFT's files, and the truth of their scores: transformers, with products added to its layers.

tests/unit/scoring/test_adapters_by_peft.py compares both with PEFT itself.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hiscore.errors import RequestError
from hiscore.scoring.requests.layout import lay_out
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from hiscore.settings import Limits
from tests.support.scoring import LABELS
from tests.support.truth import Truth, of_classifier, softmax

PREFIX = "base_model.model."
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Adapter:
    """An adapter to write.

    Attributes:
        labels: Of a head of its own; 0: it has none.
        config: Keys of its adapter_config.json that differ from those of `write`.
    """

    targets: Sequence[str] = LINEAR
    rank: int = 4
    alpha: float = 8
    labels: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


def write(adapter: Adapter, model: nn.Module, directory: Path, seed: int) -> Path:
    """Write a random adapter of a model of transformers, strong enough to change every score."""
    directory.mkdir(parents=True)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if adapter.labels else "CAUSAL_LM",
        "base_model_name_or_path": "somewhere",
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.targets),
        "modules_to_save": ["classifier", "score"] if adapter.labels else None,
        "bias": "none",
        "inference_mode": True,
        "lora_dropout": 0.1,
        **adapter.config,
    }
    generator, tensors = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.split(".")[-1] in adapter.targets:
            for part, shape in (
                ("A", (adapter.rank, module.in_features)),
                ("B", (module.out_features, adapter.rank)),
            ):
                random = torch.randn(shape, generator=generator) * 0.7 * shape[1] ** -0.5
                tensors[f"{PREFIX}{name}.lora_{part}.weight"] = random
    if adapter.labels:
        hidden = model.config.get_text_config().hidden_size
        tensors[f"{PREFIX}score.weight"] = torch.randn((adapter.labels, hidden), generator=generator) * 0.2
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    patterns = config.get("alpha_pattern") or {}
    found = (alpha for key, alpha in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return float(next(found, config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank))


class AdaptedTruth:
    """Scores of one item at a time in float32, computed by transformers' own layers with products added."""

    def __init__(self, checkpoint: Path, adapters: Mapping[str, Path]) -> None:
        self.base = Truth(checkpoint)
        self._model, self._known = self.base.model, dict[Any, np.ndarray]()
        self.adapters = {
            name: (
                json.loads((path / "adapter_config.json").read_text()),
                load_file(path / "adapter_model.safetensors"),
            )
            for name, path in adapters.items()
        }

    @contextmanager
    def _adapted(self, name: str, begin: int) -> Iterator[None]:
        config, tensors = self.adapters[name] if name else ({}, {})
        hooks = []
        for module_name, module in self._model.named_modules():
            key = f"{PREFIX}{module_name}.lora_"
            if f"{key}A.weight" not in tensors:
                continue

            def add(
                _: nn.Module, args: tuple[Tensor], out: Tensor, key: str = key, of: str = module_name
            ) -> Tensor:
                added = args[0] @ tensors[f"{key}A.weight"].T @ tensors[f"{key}B.weight"].T
                added[:, :begin] = 0
                return out + added * scale_of(config, of, len(tensors[f"{key}A.weight"]))

            hooks.append(module.register_forward_hook(add))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.inference_mode()
    def logits(self, name: str, ids: Sequence[int], early: int = 0, begin: int | None = None) -> np.ndarray:
        """Last-token logits under an adapter, float64; `early`: activated so many tokens too early.

        It begins with token `begin`; None: as its config says.
        """
        config, tensors = self.adapters[name] if name else ({}, {})
        key = name, tuple(ids), early, begin
        if key in self._known:
            return self._known[key]
        if begin is None:
            begin = begin_of(ids, config.get("alora_invocation_tokens") or ())
        with self._adapted(name, max(begin - early, 0)):
            # Without the model's head: an adapter may have one of its own.
            found = self._model.base_model(torch.tensor([list(ids)]), use_cache=False).last_hidden_state[
                0, -1
            ]
            head = tensors.get(f"{PREFIX}score.weight")
            if head is None:
                whole = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0]
                logits = whole if self.base.is_classifier else whole[-1]
            else:
                logits = head @ found
        self._known[key] = logits.double().numpy()
        return self._known[key]

    def scores(
        self,
        names: Sequence[str],
        query: Sequence[int],
        items: Sequence[Sequence[int]],
        labels: Sequence[int] = (),
        apply_softmax: bool = False,
        early: int = 0,
    ) -> np.ndarray:
        """float64 [items, labels], rows filled up with 0."""
        rows = []
        for name, item in zip(names, items, strict=True):
            logits = self.logits(name, [*query, *item], early)[None]
            if len(logits[0]) != self._model.config.get_text_config().vocab_size:
                rows.append(of_classifier(logits, apply_softmax)[0])
            else:
                rows.append((softmax(logits[:, labels]) if apply_softmax else softmax(logits)[:, labels])[0])
        found = np.zeros((len(rows), max(map(len, rows))))
        for row, values in zip(found, rows, strict=True):
            row[: len(values)] = values
        return found


class Call:
    """A request to the scorer, as Triton hands it over."""

    def __init__(
        self, query: Sequence[int], items: Sequence[Sequence[int]], names: Sequence[str], **options: Any
    ) -> None:
        self.query, self.items, self.names = query, items, names
        self.softmax = options.get("apply_softmax", False)
        self.labels = [] if options.pop("by_heads", False) else LABELS
        self._options = {"item_adapters": json.dumps(list(names)), **options}
        ids, delimiters = lay_out(MultiItemPrompt.of(query, items))
        given = {"input_ids": ids, "delimiter_indices": delimiters, "label_token_ids": self.labels}
        self.tensors = {name: np.array([values], np.int32) for name, values in given.items()}

    def parameters(self) -> str:
        return json.dumps(self._options)

    def request_id(self) -> str:
        return "1"

    def requested_output_names(self) -> list[str]:
        return ["scores"]

    def read(self, scorer: Scorer, reader: ModuleType) -> ScoreRequest:
        made = reader.RequestReader(scorer.facts, Limits(), scorer.packing.prompt).read(self)
        assert isinstance(made, ScoreRequest)
        return made

    def expected(self, truth: AdaptedTruth, **wrong: Any) -> np.ndarray:
        names = wrong.pop("names", self.names)
        return truth.scores(names, self.query, self.items, self.labels, self.softmax, **wrong)


def score(scorer: Scorer, calls: Sequence[Call], reader: ModuleType) -> list[np.ndarray]:
    answers, _ = scorer.score([call.read(scorer, reader) for call in calls])
    for answer in answers:
        assert not isinstance(answer, RequestError), answer
    return [answer.scores for answer in answers]


def begin_of(ids: Sequence[int], invocation: Sequence[int]) -> int:
    """Where an adapter begins to compute: with its invocation's last occurrence; if that is missing, nowhere."""
    if not invocation:
        return 0
    size = len(invocation)
    places = [at for at in range(len(ids) - size + 1) if list(ids[at : at + size]) == list(invocation)]
    return places[-1] if places else len(ids)
