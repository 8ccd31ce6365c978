"""Measure what lower precision costs in quality: film reviews scored by a real model in float32, bfloat16 and fp8.

A call asks for the sentiment of ten reviews; a score is the softmax over the two labels.

usage: python -m perf.quality.precision --prepare FILE.json          draw a sample, once, where pip can download
       python -m perf.quality.precision --choose --reviews FILE.json  AUC of each prompt on the held-out hundred
       python -m perf.quality.precision --reviews FILE.json [--checkpoint DIR] [--limit N] [--dtypes A,B]
           [--out DIR]
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Float64
from hiscore.checkpoint import resolve
from hiscore.errors import RequestError
from hiscore.layers.fp8 import FP8_CAPABILITY
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer
from perf.quality import agreement, reviews
from perf.quality.agreement import Interval
from perf.quality.reviews import Review
from perf.script import arguments, write_json

GROUP = 10
MAX_BATCH_TOKENS = 8_192
CALLS_AT_ONCE = 3
MOST_TOKENS = 180


@dataclass(frozen=True)
class Prompt:
    """A query, what follows each review, and the labels: the positive one first."""

    query: str
    question: str
    labels: tuple[str, str]


SHOTS = (
    "Review: I was bored from start to finish and nearly walked out.\nSentiment: negative\n\n"
    "Review: A wonderful film, and the whole cast is superb.\nSentiment: positive\n\n"
)
PROMPTS = {
    "question": Prompt(
        "Is the following film review positive? Answer Yes or No.\n\nReview:", "\n\nAnswer:", (" Yes", " No")
    ),
    "sentiment": Prompt("Review:", "\nSentiment:", (" positive", " negative")),
    "shots": Prompt(SHOTS + "Review:", "\nSentiment:", (" positive", " negative")),
    "chat": Prompt(
        "<|im_start|>user\nIs the sentiment of this film review positive or negative? Answer with one word.\n\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        ("positive", "negative"),
    ),
    "verdict": Prompt("Film review:", "\n\nAll in all, the reviewer thought the film was", (" good", " bad")),
}
# The best prompt for SmolLM2-135M-Instruct on the held-out hundred, in float32: AUC 0.88 ("verdict" 0.87,
# "sentiment" 0.86, "chat" 0.80, "question" 0.48).
CHOSEN = "shots"


class Judge:
    """One checkpoint in one precision on one device."""

    def __init__(self, checkpoint: Path, device: str, dtype: str, tokenizer: TextTokenizer) -> None:
        self.scorer = load_decoder_scorer(checkpoint, device, dtype, MAX_BATCH_TOKENS, query_cache_bytes=0)
        self._tokenizer = tokenizer

    def scores(self, texts: Sequence[Review], prompt: Prompt, calls_at_once: int = CALLS_AT_ONCE) -> Float64:
        """Probability of the positive label for each review, float64 [reviews]."""
        calls = [
            TextRequest(
                prompt.query, [f" {review.text}{prompt.question}" for review in group], labels=prompt.labels
            )
            for group in slices(texts, GROUP)
        ]
        encoder = RequestEncoder(self._tokenizer, Limits(), self.scorer.facts)
        encoded = encoder.encode([encoder.plan(call) for call in calls])
        found: list[Float64] = []
        for batch in slices(encoded, calls_at_once):
            answers, _ = self.scorer.score([_as_score_call(call) for call in batch])
            found += [_checked(answer).scores[:, 0].astype(np.float64) for answer in answers]
        return np.concatenate(found)


def slices(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut into pieces of `size`, the last one shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def _as_score_call(call: TokenizedRequest) -> ScoreRequest:
    return ScoreRequest(call.prompt, call.label_token_ids, ScoreOptions(apply_softmax=True))


def _checked(found: Any) -> Any:
    if isinstance(found, RequestError):
        raise SystemExit(f"a call was refused: {found.message}")
    return found


@dataclass(frozen=True)
class Row:
    """One precision against the reference; differences are those of the positive label's probability."""

    dtype: str
    auc: Interval
    auc_gain: Interval
    largest_difference: float
    mean_difference: float
    spearman: float
    same_best_of_ten: float
    between_batches: float
    """Largest difference between a call alone and the same call in a larger batch."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.dtype:9s} {self.auc!s:25s} {self.auc_gain!s:26s} {self.largest_difference:8.4f} "
            f"{self.mean_difference:8.4f} {self.spearman:8.4f} {self.same_best_of_ten:9.3f} "
            f"{self.between_batches:9.4f} {self.seconds:6.1f}"
        )


HEADER = (
    f"{'dtype':9s} {' AUC [95%]':25s} {' gain over the first [95%]':26s} {'max |d|':>8s} {'mean |d|':>8s} "
    f"{'Spearman':>8s} {'same best':>9s} {'batches':>9s} {'s':>6s}"
)


def compare(
    checkpoint: Path, device: str, dtypes: Sequence[str], texts: Sequence[Review], prompt: Prompt
) -> Iterator[Row]:
    """A row for each precision; the first is the reference."""
    tokenizer = load_tokenizer(checkpoint)
    positive = np.array([review.positive for review in texts])
    reference: Float64 | None = None
    for dtype in dtypes:
        judge = Judge(checkpoint, device, dtype, tokenizer)
        start = time.perf_counter()
        scores = judge.scores(texts, prompt)
        seconds = time.perf_counter() - start
        alone = judge.scores(texts, prompt, calls_at_once=1)
        reference = scores if reference is None else reference
        difference = np.abs(scores - reference)
        yield Row(
            dtype,
            agreement.auc_interval(scores, positive),
            agreement.auc_gain_interval(scores, reference, positive),
            float(difference.max()),
            float(difference.mean()),
            agreement.spearman(scores, reference),
            agreement.same_best(scores, reference, GROUP),
            float(np.abs(scores - alone).max()),
            seconds,
        )


def dtypes_of(device: str) -> tuple[str, ...]:
    """The precisions that the device computes in, the reference first."""
    if device == "cpu":
        return "float32", "bfloat16"
    has_fp8 = torch.cuda.get_device_capability() >= FP8_CAPABILITY
    return ("float32", "bfloat16", "fp8") if has_fp8 else ("float32", "bfloat16")


def choose(checkpoint: Path, device: str, held_out: Sequence[Review]) -> None:
    """Print the AUC of every prompt on the held-out reviews."""
    judge = Judge(checkpoint, device, "float32", load_tokenizer(checkpoint))
    positive = np.array([review.positive for review in held_out])
    for name, prompt in PROMPTS.items():
        print(f"{name:12s} {agreement.auc_interval(judge.scores(held_out, prompt), positive)}", flush=True)


def main() -> None:
    """Measure; writes quality.json with --out."""
    parser = arguments(__doc__, "quality.json", required=False)
    parser.add_argument(
        "--checkpoint", type=Path, default=None, help="a local directory (default: the demo's)"
    )
    parser.add_argument("--prepare", type=Path, default=None, metavar="FILE.json")
    parser.add_argument("--reviews", type=Path, default=None, metavar="FILE.json")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument(
        "--limit", type=int, default=reviews.MEASURED, help="reviews measured (default: %(default)s)"
    )
    parser.add_argument("--dtypes", default=None, help="comma-separated, the reference first")
    parser.add_argument("--prompt", choices=PROMPTS, default=CHOSEN)
    options = parser.parse_args()
    checkpoint = options.checkpoint or resolve()
    if options.prepare:
        reviews.write(options.prepare, reviews.draw(load_tokenizer(checkpoint).backend, MOST_TOKENS))
        return
    if not options.reviews:
        parser.error("--reviews is missing: --prepare makes one")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    sample = reviews.read(options.reviews)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.choose:
        choose(checkpoint, device, sample.held_out)
        return
    dtypes = options.dtypes.split(",") if options.dtypes else dtypes_of(device)
    texts = sample.measured[: options.limit]
    print(f"{len(texts)} reviews, prompt '{options.prompt}', device {device}\n{HEADER}", flush=True)
    rows = []
    for row in compare(checkpoint, device, dtypes, texts, PROMPTS[options.prompt]):
        print(row, flush=True)
        rows.append(asdict(row))
    if options.out:
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        facts = {"device": name, "torch": torch.__version__, "reviews": len(texts), "prompt": options.prompt}
        write_json(options.out / "quality.json", {**facts, "rows": rows})


if __name__ == "__main__":
    main()
