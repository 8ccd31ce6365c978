"""Short calls among long ones: how long each kind takes, by the scorer's queue order and first come, first served.

usage: python -m perf.scoring.mixed_lengths --out DIR [--load 0.8] [--seconds S] [--rounds N]

Poisson arrivals of fresh calls of 128 to 8,192 tokens, as many tokens of each size, in this process: through the
batcher to the scorer, without a server. A call's own service time is the median of what it takes alone, with
`OUTSIDE_S`, which a server adds to every call; the load is the sum of the calls' own service times over time. The
arms take the same arrivals, in turns: the scorer's queue order with large batches in slices, the order in parts of
models without slices, and first come, first served. Of each the host's time for a forward is told by part.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from hiscore.arrays import Float64
from hiscore.batching.batched_model import BatchLimits, QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.machine.facts import process_facts
from perf.models import checkpoints
from perf.scoring.queue_arms import ARMS, Arm, serving
from perf.script import arguments, write_json

ITEM, QUERY = 60, 8
SHORT, LONG = 512, 4_096
PERCENTILE = 99
OUTSIDE_S = 9e-4
"""Seconds that Triton and gRPC add on an H200: a prompt of 300 takes 3.0 ms at the client, 2.1 in process."""


@dataclass(frozen=True)
class Plan:
    """The calls of a run: sizes in tokens, and how often each is timed alone."""

    sizes: tuple[int, ...]
    budget: int
    vocabulary: int
    alone: int


GPU = Plan(tuple(128 * 2**i for i in range(7)), 16_384, 151_936, 100)
CPU = Plan((68, 128, 248, 488), 512, 500, 3)  # a rehearsal, whose numbers mean nothing


class Timed:
    """`ReplyTo` that notes when the answer came."""

    def __init__(self, left: "CountDown") -> None:
        self._left = left
        self.at = 0.0
        self.answer: Any = None

    def send(self, answer: Any) -> None:
        self.at, self.answer = time.monotonic(), answer
        self._left.one()

    def is_cancelled(self) -> bool:
        return False


class CountDown:
    """Waits until so many answers have come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self.over = threading.Event()

    def one(self) -> None:
        """One answer has come."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self.over.set()


def fresh_call(rng: np.random.Generator, size: int, vocabulary: int) -> ScoreRequest:
    """A call of so many tokens in items of at most `ITEM`."""
    lengths = np.full(-(-(size - QUERY) // ITEM), ITEM)
    lengths[-1] = size - QUERY - lengths[:-1].sum()
    tokens = rng.integers(100, vocabulary, size).astype(np.int32)
    return ScoreRequest.of(
        MultiItemPrompt(tokens, QUERY, lengths), np.array([9, 7], np.int32), ScoreOptions(apply_softmax=True)
    )


def send(batcher: Batcher[ScoreRequest], calls: Sequence[ScoreRequest], arrivals: Float64) -> Float64:
    """Send each call at its time in seconds; returns what each took, from when it was due.

    Raises:
        SystemExit: A call failed.
    """
    left = CountDown(len(calls))
    replies = [Timed(left) for _ in calls]
    begin = time.monotonic()
    for call, at, reply in zip(calls, arrivals, replies, strict=True):
        # Not spinning, which would keep the interpreter from the batcher's threads.
        time.sleep(max(0.0, begin + at - time.monotonic()))
        batcher.submit([QueuedRequest(call, reply, deadline=begin + 1e6)])
    left.over.wait()
    if failed := [reply.answer for reply in replies if isinstance(reply.answer, Exception)]:
        raise SystemExit(f"{len(failed)} calls failed: {failed[0]}")
    took: Float64 = np.array([reply.at for reply in replies]) - begin - arrivals + OUTSIDE_S
    return took


def own_times(scorer: Scorer, plan: Plan, limits: BatchLimits, rng: np.random.Generator) -> dict[int, float]:
    """The median of what a call of each size takes alone, in seconds."""

    def alone(size: int) -> float:
        return float(send(batcher, [fresh_call(rng, size, plan.vocabulary)], np.zeros(1))[0])

    with serving(scorer, limits, Arm()) as batcher:
        return {size: float(np.median([alone(size) for _ in range(plan.alone)])) for size in plan.sizes}


def measure(scorer: Scorer, plan: Plan, load: float, seconds: float, rounds: int) -> dict[str, Any]:
    """All arms on the same arrivals, in turns."""
    rng = np.random.default_rng(0)
    limits = BatchLimits(plan.budget, 100_000)
    own = own_times(scorer, plan, limits, rng)
    weights = 1 / np.array(plan.sizes)
    weights /= weights.sum()
    mean = float(np.dot(weights, [own[size] for size in plan.sizes]))
    arms = {name: Arm() for name in ARMS}
    drawn = []
    for turn in range(rounds):
        count = max(8, int(seconds * load / mean))
        sizes = rng.choice(plan.sizes, count, p=weights)
        arrivals = np.cumsum(rng.exponential(mean / load, count))
        calls = [fresh_call(rng, int(size), plan.vocabulary) for size in sizes]
        drawn.append(sizes)
        # The host may become slower as it goes on: each arm is first once.
        first = turn % len(arms)
        for name in [*arms][first:] + [*arms][:first]:
            with serving(scorer, limits, arms[name], name) as batcher:
                arms[name].took.append(send(batcher, calls, arrivals))
    sizes = np.concatenate(drawn)
    return {
        "load": load,
        "calls": len(sizes),
        "own ms": {str(size): 1e3 * each for size, each in own.items()},
        "arms": {name: summary(arm, sizes, own) for name, arm in arms.items()},
    }


def summary(arm: Arm, sizes: npt.NDArray[np.int64], own: dict[int, float]) -> dict[str, Any]:
    """The percentiles of an arm, and what its host and device did."""
    took = np.concatenate(arm.took)
    ratio = took / np.array([own[int(size)] for size in sizes])
    return {
        "short, p99 in own service times": float(np.percentile(ratio[sizes <= SHORT], PERCENTILE)),
        "long, p99 in ms": float(1e3 * np.percentile(took[sizes >= LONG], PERCENTILE))
        if (sizes >= LONG).any()
        else None,
        "p50 and p99 in ms by size": {
            str(size): [float(1e3 * np.percentile(took[sizes == size], p)) for p in (50, PERCENTILE)]
            for size in sorted(set(sizes.tolist()))
        },
        "tokens of a forward": arm.tokens / arm.forwards,
        "ms of a launch": 1e3 * arm.launch_s / arm.forwards,
        "host ms of a forward": {
            part: 1e3 * spent / arm.forwards for part, spent in {**arm.parts, "respond": arm.answer_s}.items()
        },
        "ms of a call's answer": 1e3 * arm.answer_s / len(sizes),
    }


def main() -> None:
    """Measure, print and write mixed_lengths.json."""
    parser = arguments(__doc__, "mixed_lengths.json")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=len(ARMS))
    options = parser.parse_args()
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    plan = GPU if device == "cuda" else CPU
    with tempfile.TemporaryDirectory() as directory:
        checkpoints.write(Path(directory), device, None)
        scorer = load_decoder_scorer(
            Path(directory), device, max_batch_tokens=plan.budget, query_cache_bytes=2**26
        )
    results = measure(scorer, plan, options.load, options.seconds, options.rounds)
    for name, arm in results["arms"].items():
        print(name, arm)
    write_json(options.out / "mixed_lengths.json", {"machine": process_facts(options.commit), **results})


if __name__ == "__main__":
    main()
