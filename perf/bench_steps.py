"""The steps of `make bench` and `make bench-gpu`: what runs, in which order, and how long it should take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Names that `--only` takes, and the module of perf/ that measures each.
MODULES = {
    "ablations": "scoring.ablations",
    "attention": "scoring.attention",
    "cpu_cost": "scoring.cpu_cost",
    "decode": "decoding.time_per_token",
    "decode_serving": "decoding.streaming",
    "forward": "scoring.forward",
    "gated_product": "scoring.gated_mlp",
    "quality": "quality.precision",
    "quality_served": "quality.text_scores",
    "roofline": "scoring.roofline",
    "score_load": "scoring.score_load",
    "serving": "scoring.serving",
    "text_cost": "scoring.text_cost",
    "two_gpus": "scoring.two_gpus",
}


@dataclass(frozen=True)
class Step:
    """A measurement with its arguments."""

    name: str
    measurement: str
    """Key of `MODULES`."""
    arguments: tuple[str, ...]
    seconds: float
    """Planned, on an idle machine."""

    @property
    def module(self) -> str:
        """Module that `python -m` runs."""
        return f"perf.{MODULES[self.measurement]}"


@dataclass(frozen=True)
class Given:
    """Inputs of the steps."""

    out: Path
    checkpoint: Path | None
    """A real model with its weights; None if there is none."""
    tokenizer: Path | None
    """Directory with config.json and a tokenizer, so that random weights can score text."""
    reviews: Path | None = None
    """Sample written by `perf.quality.precision --prepare`; None: download the reviews and draw one."""


def cpu_steps(given: Given) -> list[Step]:
    """Steps for a CPU, some ten minutes on a laptop."""
    to, checkpoint = ("--out", str(given.out)), str(given.checkpoint)
    model = ("--checkpoint", checkpoint)
    return [
        Step("ceilings of the machine", "roofline", (*to, *model), 25),
        Step("the scorer under load", "serving", (*to, "--quick"), 75),
        Step("a published load", "score_load", to, 75),
        Step("what text costs", "text_cost", (*to, "--model", checkpoint), 100),
        Step("what each choice is worth", "ablations", to, 20),
        Step("decoding", "decode", to, 10),
        Step("streams through the server", "decode_serving", to, 30),
        *_quality(given, ("--limit", "40", "--dtypes", "float32"), ("--limit", "40"), (30, 40)),
        Step("what the host pays", "cpu_cost", (*to, *model), 45),
    ]


def gpu_steps(given: Given, gpus: int) -> list[Step]:
    """All steps, the most informative first, in case the run is cut off. Times are an H200's."""
    to = ("--out", str(given.out))
    tokenizer = ("--tokenizer", str(given.tokenizer))
    model = ("--checkpoint", str(given.tokenizer))
    return [
        Step("streams through the server", "decode_serving", to, 170),
        Step("a published load", "score_load", (*to, *tokenizer), 290),
        Step("ceilings of the machine", "roofline", to, 60),
        *_quality(given, (), (), (60, 90)),
        # 100,000 calls, or as many as fit the time.
        Step("what the host pays", "cpu_cost", (*to, *model, "--calls", "100000", "--seconds", "240"), 290),
        Step("the scorer under load", "serving", (*to, *tokenizer), 300),
        Step("what each choice is worth", "ablations", to, 120),
        Step("decoding", "decode", to, 300),
        Step("one forward", "forward", to, 60),
        Step("one forward in fp8", "forward", (*to, "--dtype", "fp8"), 60),
        Step("attention alone", "attention", to, 120),
        Step("gate and up in one kernel", "gated_product", to, 90),
        Step("what text costs", "text_cost", (*to, *tokenizer), 90),
        *([Step("several GPUs", "two_gpus", to, 90)] if gpus > 1 else []),
    ]


# These run on a GPU only; all others have small sizes to rehearse with on a CPU.
GPU_ONLY = ("forward", "attention", "gated_product", "two_gpus")
NEEDS_WEIGHTS = ("quality", "quality_served")
NEEDS_TOKENIZER = ("score_load", "serving", "text_cost", "cpu_cost")


def missing(step: Step, given: Given) -> str | None:
    """Why a step cannot run; None if it can."""
    if step.measurement in NEEDS_WEIGHTS and given.checkpoint is None:
        return "there is no model with weights (--checkpoint DIR)"
    if step.measurement in NEEDS_TOKENIZER and given.tokenizer is None:
        return "there is no tokenizer (--tokenizer DIR)"
    return None


def _quality(
    given: Given, precision: Sequence[str], served: Sequence[str], seconds: tuple[float, float]
) -> Iterator[Step]:
    model, to = ("--checkpoint", str(given.checkpoint)), ("--out", str(given.out))
    reviews = given.reviews or given.out / "reviews" / "sample.json"
    if given.reviews is None:
        yield Step("reviews to score", "quality", ("--prepare", str(reviews), *model), 15)
    common = ("--reviews", str(reviews), *model, *to)
    yield Step("quality by text", "quality_served", (*common, *served), seconds[1])
    yield Step("quality", "quality", (*common, *precision), seconds[0])
