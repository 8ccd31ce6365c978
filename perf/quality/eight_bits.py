"""What 8 bits cost in quality: film reviews scored by a real model with each projection in each format, emulated.

usage: python -m perf.quality.eight_bits --reviews FILE.json --out DIR [--checkpoint DIR] [--limit N]
           [--only WORD,WORD]

Weights and inputs of projections are rounded to the format and multiplied in float32: no kernel, but the numbers
that one would compute. A weight has a scale for each output, an input one for each token. `rotated`: see
`rotation`; `hadamard`: the inputs of `down` are multiplied by a Hadamard matrix as they are computed. The sample
is that of `perf.quality.precision`; a difference is one of logits, positive label over negative.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from hiscore.arrays import Float64
from hiscore.checkpoint import resolve
from hiscore.kernels.eight_bits import FP8_LARGEST, INT8_LARGEST, SMALLEST_PEAK
from perf.machine.facts import process_facts
from perf.quality import agreement, reviews
from perf.quality.agreement import Interval
from perf.quality.precision import CHOSEN, GROUP, PROMPTS, slices
from perf.quality.reviews import Review
from perf.quality.rotation import hadamard, rotate
from perf.script import arguments, by_comma, write_json

ROWS = 100
RESAMPLES = 500


def in_bfloat16(x: Tensor) -> Tensor:
    """Round to bfloat16."""
    return x.bfloat16().float()


def in_fp8(x: Tensor) -> Tensor:
    """Round each row to float8_e4m3fn with a scale of its own."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_PEAK) / FP8_LARGEST
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def in_int8(x: Tensor) -> Tensor:
    """Round each row to whole numbers from -127 to 127 with a scale of its own."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_PEAK) / INT8_LARGEST
    return torch.round(x / scale) * scale


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {"bfloat16": in_bfloat16, "fp8": in_fp8, "int8": in_int8}


@dataclass(frozen=True)
class Variant:
    """The format of each projection."""

    qkv: str
    output: str
    gate_up: str
    down: str
    rotated: bool = False
    hadamard: int = 0
    """Size of the matrix that multiplies the inputs of `down`; 0: none."""
    seed: int = 0

    @staticmethod
    def all(name: str, rotated: bool = False, hadamard: int = 0, seed: int = 0) -> "Variant":
        """Every projection in one format."""
        return Variant(name, name, name, name, rotated, hadamard, seed)


VARIANTS = {
    "bfloat16": Variant.all("bfloat16"),
    "bfloat16, rotated": Variant.all("bfloat16", rotated=True),
    "fp8": Variant.all("fp8"),
    "fp8, rotated": Variant.all("fp8", rotated=True),
    "fp8 in qkv alone": Variant("fp8", "bfloat16", "bfloat16", "bfloat16"),
    "fp8 in output alone": Variant("bfloat16", "fp8", "bfloat16", "bfloat16"),
    "fp8 in gate and up alone": Variant("bfloat16", "bfloat16", "fp8", "bfloat16"),
    "fp8 in down alone": Variant("bfloat16", "bfloat16", "bfloat16", "fp8"),
    "int8": Variant.all("int8"),
    "int8, rotated": Variant.all("int8", rotated=True),
    "int8, rotated, but down": Variant("int8", "int8", "int8", "bfloat16", rotated=True),
    "int8, rotated, but attention": Variant(
        "bfloat16", "bfloat16", "int8", "int8", rotated=True, hadamard=512
    ),
    "int8 in qkv alone, rotated": Variant("int8", "bfloat16", "bfloat16", "bfloat16", rotated=True),
    "int8 in output alone, rotated": Variant("bfloat16", "int8", "bfloat16", "bfloat16", rotated=True),
    "int8 in gate and up alone, rotated": Variant("bfloat16", "bfloat16", "int8", "bfloat16", rotated=True),
    "int8 in down alone, hadamard": Variant("bfloat16", "bfloat16", "bfloat16", "int8", True, 512),
    "int8, rotated, hadamard": Variant.all("int8", True, 512),
    "int8, rotated, hadamard, seed 1": Variant.all("int8", True, 512, seed=1),
    "int8, rotated, hadamard, seed 2": Variant.all("int8", True, 512, seed=2),
}


class Emulated(nn.Module):
    """A projection without bias whose weight and inputs are rounded to a format, and whose result to bfloat16."""

    def __init__(self, weight: Tensor, name: str, matrix: Tensor | None = None) -> None:
        super().__init__()
        self._round = FORMATS[name]
        self._matrix = None if matrix is None else matrix.to(weight.device)
        if self._matrix is not None:
            weight = (
                (weight.double().unflatten(-1, (-1, len(self._matrix))) @ self._matrix).flatten(-2).float()
            )
            self._matrix = self._matrix.float()
        self._weight = self._round(weight)

    def forward(self, x: Tensor) -> Tensor:
        """[.., in] -> [.., out]."""
        x = in_bfloat16(x)
        if self._matrix is not None:
            x = in_bfloat16((x.unflatten(-1, (-1, len(self._matrix))) @ self._matrix).flatten(-2))
        return in_bfloat16(nn.functional.linear(self._round(x), self._weight))


def apply(model: Any, variant: Variant) -> Any:
    """Replace the projections of a model, in place; returns it."""
    if variant.rotated:
        rotate(model, variant.seed)
    matrix = hadamard(variant.hadamard) if variant.hadamard else None
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for module, names, chosen in (
            (attention, ("q_proj", "k_proj", "v_proj"), variant.qkv),
            (attention, ("o_proj",), variant.output),
            (mlp, ("gate_proj", "up_proj"), variant.gate_up),
            (mlp, ("down_proj",), variant.down),
        ):
            for name in names:
                of_down = matrix if name == "down_proj" else None
                setattr(module, name, Emulated(getattr(module, name).weight.detach(), chosen, of_down))
    return model


class Judge:
    """Scores reviews by models of one checkpoint."""

    def __init__(self, checkpoint: Path, device: str, texts: Sequence[Review]) -> None:
        self._checkpoint, self._device = checkpoint, device
        prompt, tokenizer = PROMPTS[CHOSEN], AutoTokenizer.from_pretrained(checkpoint)
        self._ids = [
            tokenizer(f"{prompt.query} {review.text}{prompt.question}")["input_ids"] for review in texts
        ]
        self._labels = [tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in prompt.labels]

    def load(self) -> Any:
        """The model in float32."""
        model = AutoModelForCausalLM.from_pretrained(self._checkpoint, dtype=torch.float32)
        return model.to(self._device).eval()

    @torch.no_grad()
    def logits(self, model: Any) -> Float64:
        """The positive label's logit less the negative one's, float64 [reviews]."""
        found = np.zeros(len(self._ids))
        by_length = sorted(range(len(self._ids)), key=lambda index: len(self._ids[index]))
        for rows in slices(by_length, ROWS):
            longest = len(self._ids[rows[-1]])
            ids = torch.tensor([self._ids[row] + [0] * (longest - len(self._ids[row])) for row in rows])
            ends = torch.tensor([len(self._ids[row]) - 1 for row in rows])
            mask = torch.arange(longest) <= ends[:, None]
            hidden = model.model(
                input_ids=ids.to(self._device), attention_mask=mask.to(self._device)
            ).last_hidden_state
            last = hidden[torch.arange(len(rows)), ends.to(self._device)].double()
            both = last @ model.lm_head.weight[self._labels].double().T
            found[list(rows)] = (both[:, 0] - both[:, 1]).cpu().numpy()
        return found


@dataclass(frozen=True)
class Row:
    """A variant beside float32."""

    auc_gain: Interval
    same_best_of_ten: float
    logit_deviation: float
    """Standard deviation of the differences."""
    logit_shift: float
    """Their mean, which changes no order."""

    def __str__(self) -> str:
        return (
            f"{self.auc_gain!s:26s} {self.same_best_of_ten:9.3f} {self.logit_deviation:9.4f} "
            f"{self.logit_shift:+8.4f}"
        )


def compare(judge: Judge, variants: dict[str, Variant], positive: Any) -> Iterator[tuple[str, Row]]:
    """A row for each variant."""
    truth = judge.logits(judge.load())
    for name, variant in variants.items():
        logits = judge.logits(apply(judge.load(), variant))
        difference = logits - truth
        yield (
            name,
            Row(
                agreement.auc_gain_interval(logits, truth, positive, RESAMPLES),
                agreement.same_best(logits, truth, GROUP),
                float(difference.std()),
                float(difference.mean()),
            ),
        )


def main() -> None:
    """Measure, print and write eight_bits.json."""
    parser = arguments(__doc__, "eight_bits.json")
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--reviews", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--limit", type=int, default=reviews.MEASURED)
    parser.add_argument("--only", type=by_comma, default=None)
    options = parser.parse_args()
    texts = reviews.read(options.reviews).measured[: options.limit]
    chosen = {
        name: variant
        for name, variant in VARIANTS.items()
        if not options.only or any(word in name for word in options.only)
    }
    judge = Judge(options.checkpoint or resolve(), "cuda" if torch.cuda.is_available() else "cpu", texts)
    rows = {}
    for name, row in compare(judge, chosen, np.array([review.positive for review in texts])):
        print(f"{name:36s} {row}", flush=True)
        rows[name] = {**asdict(VARIANTS[name]), **asdict(row)}
    facts = process_facts(options.commit)
    write_json(options.out / "eight_bits.json", {"machine": facts, "reviews": len(texts), "variants": rows})


if __name__ == "__main__":
    main()
