"""What `make bench` and `make bench-gpu` run, in which order, and how long each is planned to take."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """module: of perf; seconds: planned."""

    name: str
    module: str
    arguments: tuple[str, ...]
    seconds: float


def cpu(out: Path, checkpoint: Path) -> list[Step]:
    """Minutes on a laptop. checkpoint: a real model with a tokenizer."""
    to, model = ("--out", str(out)), ("--checkpoint", str(checkpoint))
    return [
        Step("ceilings of the machine", "roofline", (*to, *model), 20),
        Step("the scorer under load", "serving", (*to, "--quick"), 75),
        Step("where the time goes", "trace", (*to, *model), 30),
        Step("what text costs", "text_cost", (*to, "--model", str(checkpoint)), 90),
        Step("what each choice is worth", "ablations", to, 20),
        Step("peers", "peers", (*to, *model), 180),
        Step("decoding", "decode", to, 40),
        *_quality(out, checkpoint, ("--limit", "40", "--dtypes", "float32")),
        Step("what the host pays", "cpu_cost", (*to, *model), 60),
    ]


def gpu(out: Path, checkpoint: Path, gpus: int) -> list[Step]:
    """The full set. checkpoint: a real model, whose tokenizer also stands in for that of random weights."""
    to, model = ("--out", str(out)), ("--checkpoint", str(checkpoint))
    tokenizer = ("--tokenizer", str(checkpoint))
    return [
        Step("ceilings of the machine", "roofline", to, 60),
        Step("one forward", "forward", to, 60),
        Step("one forward in fp8", "forward", (*to, "--dtype", "fp8"), 60),
        Step("attention alone", "attention", to, 120),
        Step("what each choice is worth", "ablations", to, 120),
        Step("peers", "peers", to, 120),
        Step("the scorer under load", "serving", (*to, *tokenizer), 300),
        Step("where the time goes", "trace", (*to, *model), 40),
        Step("what text costs", "text_cost", (*to, *tokenizer), 90),
        Step("decoding", "decode", to, 300),
        *([Step("several GPUs", "two_gpus", to, 90)] if gpus > 1 else []),
        *_quality(out, checkpoint, ()),
        Step("what the host pays", "cpu_cost", (*to, *model, "--calls", "100000"), 400),
    ]


def _quality(out: Path, checkpoint: Path, more: Sequence[str]) -> list[Step]:
    reviews, model = str(out / "reviews" / "sample.json"), ("--checkpoint", str(checkpoint))
    return [
        Step("reviews to score", "quality", ("--prepare", reviews, *model), 15),
        Step("quality", "quality", ("--reviews", reviews, *model, "--out", str(out), *more), 60),
    ]
