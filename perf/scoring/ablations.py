"""Measure what each optimisation of the scorer is worth, with and without it, in turns in one process.

usage: python -m perf.scoring.ablations --out DIR [--only WORD,WORD] [--rounds N]

A ratio compares the time per call with that of the group's first arm: 1.2 means that a call takes 20% longer. On a
GPU the model has Qwen3-0.6B's geometry and random weights; on a CPU a tiny model takes its place, as a rehearsal
whose numbers mean nothing. Exits with 1 if the scores of two arms of a group differ.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from hiscore.arrays import Float32
from hiscore.errors import RequestError
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.results.pending_scores import Scores
from perf.machine.facts import process_facts
from perf.machine.gpu_idle import Idle, profiled
from perf.machine.interleave import ArmResult, interleave
from perf.models import checkpoints
from perf.scoring import ablation_groups
from perf.scoring.ablation_groups import CPU, GPU, Arm, Batch, Group, Sizes
from perf.script import arguments, by_comma, write_json

# Float32: the contract's tolerance. Bfloat16 rounds differently in products of other sizes: the project's bound
# for it against float32, far below the difference between two items' scores.
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def window(arm: Arm, batches: Sequence[Batch]) -> float:
    """Seconds per call over some batches, with `arm.depth` of them in flight."""
    waiting: deque[Any] = deque()
    start = time.perf_counter()
    for batch in batches:
        waiting.append(arm.submit(batch))
        if len(waiting) == arm.depth:
            waiting.popleft().result()
    while waiting:
        waiting.popleft().result()
    return (time.perf_counter() - start) / sum(map(len, batches))


def scores_of(arm: Arm, batch: Batch) -> Float32:
    """The scores of all items of a batch, float32 [items, labels]."""
    answers: list[Scores | RequestError] = arm.submit(batch).result()[0]
    for answer in answers:
        if isinstance(answer, RequestError):
            raise answer
    results = [answer for answer in answers if isinstance(answer, Scores)]
    if arm.cached != (sum(answer.cached_tokens for answer in results) > 0):
        raise SystemExit("the query cache served the wrong arm, or not the right one")
    return np.concatenate([answer.scores for answer in results])


def check(group: Group, tolerance: float) -> float:
    """Compare the arms' scores of the last batch; returns the largest difference from the first arm's.

    Raises:
        SystemExit: A difference exceeds the tolerance, or items score so alike that a mistake would not show.
    """
    results = {name: scores_of(arm, group.batches[-1]) for name, arm in group.arms.items()}
    base = next(iter(results.values()))
    control = float(np.abs(base - np.roll(base, 1, axis=0)).max())
    if len(base) > 1 and control < 4 * tolerance:
        raise SystemExit(
            f"{group.name}: items differ by {control:.2g} only, the check could not see a mistake"
        )
    for name, scores in results.items():
        if scores.shape != base.shape or not (np.abs(scores - base).max() <= tolerance):
            raise SystemExit(f"{group.name}: '{name}' gives other scores than '{next(iter(results))}'")
    return max(float(np.abs(scores - base).max()) for scores in results.values())


def measure(group: Group, sizes: Sizes, tolerance: float, on_cuda: bool) -> dict[str, Any]:
    """Warm up, check and time a group; where it asks for it, also measure the GPU's idle share."""
    for arm in group.arms.values():
        window(arm, group.batches)
    difference = check(group, tolerance)
    results = interleave(
        {name: lambda arm=arm: 1e3 * window(arm, group.batches) for name, arm in group.arms.items()},  # type: ignore[misc]
        sizes.rounds,
    )
    shares: dict[str, Idle] = {}
    if group.idle and on_cuda:
        shares = {
            name: profiled(lambda arm=arm: window(arm, group.batches))  # type: ignore[misc]
            for name, arm in group.arms.items()
        }
    show(group, results, shares)
    arms = {name: asdict(result) for name, result in results.items()}
    for name, share in shares.items():
        arms[name]["idle"] = asdict(share)
    return {"what": group.what, "unit": "ms per call", "largest_difference": difference, "arms": arms}


def show(group: Group, results: dict[str, ArmResult], shares: dict[str, Idle]) -> None:
    """Print a line for each arm."""
    print(f"\n{group.name}: {group.what}")
    for name, result in results.items():
        line = f"  {name:32s} {result.value!s:28s} ms per call  x {result.ratio!s}"
        if name in shares:
            line += f"  GPU idle {shares[name].any_gap:.1%}, in long gaps {shares[name].long_gaps:.1%}"
        print(line, flush=True)


def main() -> int:
    """Load the model and measure; writes ablations.json after every group."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = GPU if device == "cuda" else CPU
    sizes = sizes.with_rounds(options.rounds) if options.rounds else sizes
    if device == "cpu":
        torch.set_num_threads(1)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        checkpoints.write(Path(directory), device, None)
        scorer = load_decoder_scorer(
            Path(directory), device, max_batch_tokens=sizes.budget, query_cache_bytes=0
        )
        caching = load_decoder_scorer(
            Path(directory), device, max_batch_tokens=sizes.budget, query_cache_bytes=sizes.cache_bytes
        )
    groups = ablation_groups.groups(scorer, caching, sizes)
    chosen = [group for group in groups if not options.only or any(w in group.name for w in options.only)]
    if not chosen:
        names = ", ".join(group.name for group in groups)
        raise SystemExit(f"--only names none of the groups: {names}")
    skipped = ablation_groups.skipped(device)
    written: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "sizes": asdict(sizes),
        "skipped": skipped,
        "groups": {},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for group in chosen:
        written["groups"][group.name] = measure(
            group, sizes, TOLERANCES[scorer.computation.head._weight.dtype], device == "cuda"
        )
        written["seconds"] = time.perf_counter() - begin
        # Written after each group, so that one that fails does not cost the others their results.
        write_json(options.out / "ablations.json", written)
    for line in skipped:
        print(f"left out: {line}")
    print(f"\n{written['seconds']:.0f} s in all")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "ablations.json")
    parser.add_argument(
        "--only",
        type=by_comma,
        help="groups with one of these words in their names, comma-separated",
    )
    parser.add_argument("--rounds", type=int, help="how often each arm is run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
