"""One scoring call on one GPU and on several: its time at the geometry of an 8B model with random weights.

usage: python -m perf.scoring.tensor_parallel --out DIR [--ranks 1,2] [--geometry qwen3-8b] [--device cuda]

A call has a query of 120 tokens and 10 items of 180. Times are medians after a second of the same work, from the
request to its scores on the host, without a server and without a cache of queries. With --device cpu and a tiny
geometry it is a rehearsal whose numbers mean nothing.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.parallel.leader import lead
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.loadgen.scorer_calls import Shape
from perf.machine.facts import process_facts
from perf.models import random_checkpoint
from perf.script import arguments, by_comma, write_json

CALL = Shape(120, 10, 180)
LABELS = np.array([7, 9], np.int32)
BUDGET = 2_048
"""Tokens of a forward: the call is one, and few graphs have to be captured."""
WARM_S, MEASURED_S, LEAST = 1.0, 3.0, 5
GOALS = {2: 0.60, 4: 0.36}
"""Share of one GPU's time."""


def seconds_of_calls(scorer: Scorer, vocabulary: int) -> tuple[float, Any]:
    """Median time of a call, and the scores of the first."""
    rng = np.random.default_rng(0)

    def request() -> ScoreRequest:
        items = [rng.integers(0, vocabulary, CALL.item).tolist() for _ in range(CALL.items)]
        prompt = MultiItemPrompt.of(rng.integers(0, vocabulary, CALL.query).tolist(), items)
        return ScoreRequest(prompt, LABELS, ScoreOptions())

    first, _ = scorer.score([request()])
    requests = [request() for _ in range(16)]
    times: list[float] = []
    until, number = time.perf_counter() + WARM_S, 0
    while len(times) < LEAST or sum(times) < MEASURED_S:
        begin = time.perf_counter()
        scorer.score([requests[number % len(requests)]])
        number += 1
        if begin > until:
            times.append(time.perf_counter() - begin)
    return statistics.median(times), first[0]


def measure(directory: Path, ranks: int, device: str, vocabulary: int) -> tuple[float, Any]:
    """Load on so many ranks, and time calls."""
    names = [f"cuda:{rank}" if device == "cuda" else "cpu" for rank in range(ranks)]
    leader = lead([torch.device(name) for name in names])
    leader.prepare(random_checkpoint.draw_on)
    scorer = load_decoder_scorer(directory, names[0], "auto", BUDGET, 0, 4_096, leader=leader)
    try:
        return seconds_of_calls(scorer, vocabulary)
    finally:
        scorer.close()


def main() -> int:
    parser = arguments(__doc__, "tensor_parallel.json")
    parser.add_argument("--ranks", type=by_comma, default=["1", "2"])
    parser.add_argument("--geometry", default="qwen3-8b")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    vocabulary = random_checkpoint.config_of(options.geometry)["vocab_size"]
    results: dict[str, Any] = {
        "facts": process_facts(options.commit),
        "geometry": options.geometry,
        "calls": {},
    }
    times: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        random_checkpoint.write_config(options.geometry, Path(directory))
        truth = None
        for ranks in map(int, options.ranks):
            times[ranks], scores = measure(Path(directory), ranks, options.device, vocabulary)
            truth = scores.scores if truth is None else truth
            off = float(np.abs(scores.scores / truth - 1).max())
            share = times[ranks] / next(iter(times.values()))
            results["calls"][ranks] = {"seconds": times[ranks], "share": share, "largest_relative": off}
            print(
                f"{ranks} ranks: {times[ranks] * 1e3:.2f} ms a call, {share:.2f}x the first"
                f" (goal {GOALS.get(ranks, 1.0):.2f}x); scores differ by {off:.2%} at most",
                flush=True,
            )
    write_json(options.out / "tensor_parallel.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
