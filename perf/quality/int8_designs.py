"""What int8 costs in quality, by which projections are in 8 bits: film reviews through the scorer itself.

usage: python -m perf.quality.int8_designs --reviews FILE.json --out DIR [--checkpoint DIR] [--limit N]

The sample, the prompt and the calls are those of `perf.quality.precision`; the reference is float32. Differences
are of log odds, positive label over negative. `perf.quality.eight_bits` emulates more formats without a kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Float64
from hiscore.checkpoint import resolve
from hiscore.layers.eight_bits import EightBits
from hiscore.models.config import read_architecture
from hiscore.models.int8 import PROJECTIONS, SERVED, Int8Design
from hiscore.models.loader import load_weights
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.scorer import Scorer
from hiscore.tokenization.tokenizer import load_tokenizer
from perf.machine.facts import process_facts
from perf.quality import agreement, reviews
from perf.quality.agreement import Interval
from perf.quality.precision import CHOSEN, GROUP, PROMPTS, Judge
from perf.quality.reviews import Review
from perf.script import arguments, write_json

ATTENTION, MLP = frozenset(("qkv", "output")), frozenset(("gate_up", "down"))
DESIGNS = {
    "int8": Int8Design(),
    "int8, but down": Int8Design(kept=frozenset(("down",))),
    "int8, but attention": Int8Design(kept=ATTENTION),
    "int8, but attention and down": Int8Design(kept=ATTENTION | {"down"}),
    "int8, but output and down": Int8Design(kept=frozenset(("output", "down"))),
    "rotated, nothing in int8": Int8Design(kept=frozenset(PROJECTIONS)),
    "int8, not rotated": Int8Design(rotated=False),
}


def use(design: Int8Design, scorer: Scorer, checkpoint: Path) -> None:
    """Give a scorer in int8 on the CPU another design than the served one."""
    assert isinstance(scorer.runner, TorchRunner)
    decoder = scorer.runner._decoder
    architecture, _ = read_architecture(checkpoint)
    decoder.weights = load_weights(
        checkpoint, architecture, decoder.device, decoder.dtype, EightBits.INT8, design=design
    )
    scorer.compute_with(replace(scorer._computation, head=decoder.head()))


@dataclass(frozen=True)
class Row:
    """A design beside float32."""

    auc: Interval
    auc_gain: Interval
    same_best_of_ten: float
    deviation: float
    """Standard deviation of the differences."""
    shift: float
    """Their mean, which changes no order."""

    def __str__(self) -> str:
        return (
            f"{self.auc!s:25s} {self.auc_gain!s:26s} {self.same_best_of_ten:9.3f} {self.deviation:9.4f} "
            f"{self.shift:+8.4f}"
        )


def compare(checkpoint: Path, texts: Sequence[Review]) -> Iterator[tuple[str, Row]]:
    """A row for each design."""
    tokenizer, prompt = load_tokenizer(checkpoint), PROMPTS[CHOSEN]
    positive = np.array([review.positive for review in texts])
    truth = Judge(checkpoint, "cpu", "float32", tokenizer).scores(texts, prompt)
    for name, design in DESIGNS.items():
        judge = Judge(checkpoint, "cpu", "int8", tokenizer)
        if design != SERVED:
            use(design, judge.scorer, checkpoint)
        scores = judge.scores(texts, prompt)
        difference = _log_odds(scores) - _log_odds(truth)
        yield (
            name,
            Row(
                agreement.auc_interval(scores, positive),
                agreement.auc_gain_interval(scores, truth, positive),
                agreement.same_best(scores, truth, GROUP),
                float(difference.std()),
                float(difference.mean()),
            ),
        )


def _log_odds(scores: Float64) -> Float64:
    found: Float64 = np.log(scores / (1 - scores))
    return found


def main() -> None:
    """Measure, print and write int8_designs.json."""
    parser = arguments(__doc__, "int8_designs.json")
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--reviews", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--limit", type=int, default=reviews.MEASURED)
    options = parser.parse_args()
    texts = reviews.read(options.reviews).measured[: options.limit]
    rows: dict[str, Any] = {}
    for name, row in compare(options.checkpoint or resolve(), texts):
        print(f"{name:30s} {row}", flush=True)
        rows[name] = {"kept": sorted(DESIGNS[name].kept), "rotated": DESIGNS[name].rotated, **asdict(row)}
        facts = process_facts(options.commit) | {"torch": torch.__version__}
        write_json(
            options.out / "int8_designs.json", {"machine": facts, "reviews": len(texts), "designs": rows}
        )


if __name__ == "__main__":
    main()
