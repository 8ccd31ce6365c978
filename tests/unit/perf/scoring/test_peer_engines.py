"""Peers give our scores: transformers itself, and fakes of vLLM and SGLang with their signatures."""

import asyncio
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from perf.loadgen.scorer_calls import Ids, Shape, draw
from perf.loadgen.window import WrongScores
from perf.scoring import peers
from perf.scoring.peer_engines import Ours, Sglang, Transformers, Unavailable, Vllm
from tests.support import tiny_models

SHAPE = Shape(12, 3, 7)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("peers")
    tiny_models.make("qwen3", directory)
    return directory


def calls(count: int = 2, shape: Shape = SHAPE) -> list[Ids]:
    return draw(np.random.default_rng(0), shape, count, 500, (9, 7))


def test_transformers_gives_our_scores(checkpoint: Path) -> None:
    ours, theirs = (arm(checkpoint, "cpu").scores(calls()) for arm in (Ours, Transformers))
    assert ours.shape == (2 * SHAPE.items, 2)
    assert peers.compare({"ours": ours, "theirs": theirs}, 2e-5)["theirs"] < 2e-5
    with pytest.raises(WrongScores, match="a score of theirs differs"):
        peers.compare({"ours": ours, "theirs": np.roll(theirs, 1, axis=0)}, 2e-5)
    with pytest.raises(WrongScores, match="a score of theirs differs"):
        peers.compare({"ours": ours, "theirs": np.full_like(theirs, np.nan)}, 2e-5)
    with pytest.raises(WrongScores, match="gives"):
        peers.compare({"ours": ours, "theirs": theirs[:3]}, 2e-5)
    with pytest.raises(WrongScores, match="could not see"):
        peers.compare({"ours": np.full_like(ours, 0.5), "theirs": theirs}, 2e-5)


class Answers:
    """What an engine computes, by transformers: label log-probabilities of a prompt over the whole vocabulary."""

    def __init__(self, checkpoint: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logprobs(self, prompt: list[int]) -> torch.Tensor:
        logits = self._model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
        return torch.log_softmax(logits, 0)


@dataclass
class SamplingParams:
    """Of vLLM 0.25.1, the fields that are used."""

    temperature: float = 1.0
    max_tokens: int | None = 16
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True


class LLM:
    """vLLM 0.25.1's offline engine, as far as its signatures go."""

    def __init__(
        self, model: str, *, skip_tokenizer_init: bool = False, dtype: str = "auto",
        gpu_memory_utilization: float = 0.9, **engine_arguments: Any,
    ) -> None:  # fmt: skip
        assert engine_arguments.keys() <= {"enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs"}
        assert skip_tokenizer_init  # random weights have none
        self._answers = Answers(model)

    def generate(
        self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True, lora_request: Any = None
    ) -> list[Any]:
        found = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            assert (params.max_tokens, params.detokenize, params.logprobs) == (1, False, None)
            of = self._answers.logprobs(prompt["prompt_token_ids"])
            # Of each token asked for, and of the one that was sampled.
            tokens = {*params.logprob_token_ids, int(of.argmax())}
            logprobs = {token: SimpleNamespace(logprob=float(of[token]), rank=1) for token in tokens}
            found.append(SimpleNamespace(outputs=[SimpleNamespace(logprobs=[logprobs])]))
        return found


class Engine:
    """SGLang 0.5.17's offline engine, as far as its signatures go."""

    started: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **server_arguments: Any) -> None:
        self.started.append(server_arguments)
        self._answers = Answers(server_arguments["model_path"])
        self.loop = asyncio.new_event_loop()
        self.at_work = self.most_at_work = 0

    async def async_score(
        self, query: Any = None, items: Any = None, label_token_ids: list[int] | None = None,
        apply_softmax: bool = False, item_first: bool = False, embed_override_token_id: int | None = None,
    ) -> Any:  # fmt: skip
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        self.at_work -= 1
        assert apply_softmax
        assert label_token_ids
        scores = [
            self._answers.logprobs([*query, *item])[label_token_ids].softmax(0).tolist() for item in items
        ]
        return SimpleNamespace(scores=scores, prompt_tokens=0)

    def shutdown(self) -> None:
        self.loop.close()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, parts in (
        ("vllm", {"LLM": LLM, "SamplingParams": SamplingParams}),
        ("sglang", {"Engine": Engine}),
    ):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Engine, "started", [])


def test_adapters_ask_engines_for_our_scores(checkpoint: Path, engines: None) -> None:
    """Not the engines themselves: calls as their signatures have them, answers read as they give them."""
    ours = Ours(checkpoint, "cpu").scores(calls())
    vllm = Vllm(checkpoint, "cuda")
    assert peers.compare({"ours": ours, "vllm": vllm.scores(calls())}, 2e-5)["vllm"] < 2e-5
    vllm.close()
    for multi_item in (False, True):
        sglang: Any = Sglang(checkpoint, "cuda", multi_item)
        assert peers.compare({"ours": ours, "sglang": sglang.scores(calls())}, 2e-5)["sglang"] < 2e-5
        assert sglang._engine.most_at_work == 2  # not one call after the other
        sglang.close()
    assert [arguments.get("enable_mis", False) for arguments in Engine.started] == [False, True]
    # Control: labels in another order are other scores.
    swapped = [Ids(call.query, call.items, call.labels[::-1]) for call in calls()]
    with pytest.raises(WrongScores, match="differs"):
        peers.compare({"ours": ours, "vllm": Vllm(checkpoint, "cuda").scores(swapped)}, 2e-5)


def test_a_vllm_without_what_is_needed_is_named(
    checkpoint: Path, engines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "SamplingParams", lambda temperature, max_tokens: None)
    with pytest.raises(Unavailable, match="no logprob_token_ids"):
        Vllm(checkpoint, "cuda")


def test_peers_that_cannot_run_are_named(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started, skipped, failures = peers.start(["hiscore", "vLLM", "SGLang"], checkpoint, "cpu")
    assert list(started) == ["hiscore"]
    assert failures == []
    assert skipped == [f"{name}: {name} is compared on a CUDA device only" for name in ("vLLM", "SGLang")]
    assert "left out: vLLM" in capsys.readouterr().out
    for peer, package in ((Vllm, "vllm"), (Sglang, "sglang")):
        with pytest.raises(Unavailable, match=f"the package {package} is not installed"):
            peer(checkpoint, "cuda")


class Swapped(Transformers):
    """Gives a label the other's score."""

    def scores(self, calls: Any) -> Any:
        return super().scores(calls)[:, ::-1]


def test_a_peer_that_fails_costs_no_other_its_results(
    checkpoint: Path, engines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "LLM", lambda **arguments: 1 / 0)
    monkeypatch.setitem(peers.PEERS, "swapped", Swapped)
    started, _, failures = peers.start(["vLLM"], checkpoint, "cuda")
    assert started == {}
    assert failures == ["vLLM does not start: ZeroDivisionError: division by zero"]
    found, _, failures = peers.start(["hiscore", "swapped", "transformers, SDPA"], checkpoint, "cpu")
    right, differences = peers.equal(found, calls(), 2e-5, failures)
    assert list(right) == list(differences) == ["hiscore", "transformers, SDPA"]
    (line,) = failures
    assert line.startswith("swapped: WrongScores: a score of swapped differs")
