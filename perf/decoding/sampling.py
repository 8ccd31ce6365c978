"""Measure what sampling adds to a step: its kernels against greedy's and FlashInfer's, and an engine's tokens.

usage: python -m perf.decoding.sampling --out DIR [--rows 1,8,32,64] [--parts kernels,engine,flashinfer]

Kernels are timed as a graph holds them, behind one another, over logits of a trained model's shape (peaked) and of
random weights (flat), after their tokens were compared with those of a sort. The kernel by kernel times overlap
where kernels start early. The engine has Qwen3-0.6B's geometry and random weights, so its logits are flat; ways of
sampling take turns. Without a GPU a tiny model takes its place and kernels run in Triton's interpreter, as a
rehearsal whose numbers mean nothing.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding import sampling_arms as arms
from perf.decoding.arms import PLENTY, Arm, build_worker, shared_weights
from perf.decoding.closed_loop import Callers, ClosedLoop
from perf.machine.facts import process_facts
from perf.machine.graph_timer import microseconds
from perf.machine.interleave import in_turns
from perf.machine.kernel_times import kernel_times
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, by_comma, described, failed, write_json

CUDA = torch.cuda.is_available()
VOCABULARY = 151_936 if CUDA else 300
LOGITS = {"peaked": arms.peaked, "flat": arms.flat}
IN_A_GRAPH, PROFILED = 20, 20
PROFILED_ROWS = (1, 32)
LOADS = (ClosedLoop(2, 1, 1_024, 128), ClosedLoop(32, 32, 1_024, 128))
TINY_LOADS = (ClosedLoop(2, 1, 64, 8), ClosedLoop(2, 2, 64, 8))
ROUNDS = 3 if CUDA else 1


@dataclass(frozen=True)
class Options:
    """The command line."""

    out: Path
    commit: str | None
    rows: tuple[int, ...]
    parts: list[str]


def time_of(run: Callable[[], object]) -> float:
    """Microseconds of one run in a graph; in the interpreter, of one run."""
    if CUDA:
        return microseconds([run] * IN_A_GRAPH, warmup_ms=5, measured_ms=20)
    started = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - started)


def measured(run: Callable[[], object]) -> float | str:
    """`time_of`, or why there is none."""
    try:
        return time_of(run)
    except Exception as error:  # one arm's failure must not cost the others' results
        return failed(described(error)[:300])


def shown(value: float | str) -> str:
    return f"{value:9.1f}" if isinstance(value, float) else value


def our_kernels(rows: int) -> Iterator[tuple[str, Any]]:
    """Greedy by PyTorch, then each mix: microseconds, and of some numbers of rows each kernel's."""
    for kind, make in LOGITS.items():
        logits = make(rows, VOCABULARY)
        yield f"{rows} rows, {kind}, argmax alone", measured(lambda: logits.argmax(-1))  # noqa: B023
        yield f"{rows} rows, {kind}, greedy by PyTorch", measured(arms.by_torch(logits))
        for name, mix in arms.MIXES.items():
            try:
                arms.check(logits[:4], name)
            except ArithmeticError as error:
                yield f"{rows} rows, {kind}, {name}", failed(described(error))
                continue
            run = arms.ours(logits, mix)
            yield f"{rows} rows, {kind}, {name}", measured(run)
            if CUDA and rows in PROFILED_ROWS:
                times = kernel_times(lambda: [run() for _ in range(PROFILED)], PROFILED)  # noqa: B023
                yield f"{rows} rows, {kind}, {name}, kernels", {each.name: each.us for each in times}


def flashinfer_kernels(rows: int) -> Iterator[tuple[str, Any]]:
    """Each mix by FlashInfer's kernels."""
    for kind, make in LOGITS.items():
        logits = make(rows, VOCABULARY)
        for name in arms.MIXES:
            for arm, run in arms.flashinfer(logits, name).items():
                yield f"{rows} rows, {kind}, {name}, FlashInfer {arm}", measured(run)


def engine() -> Iterator[tuple[str, Any]]:
    """Milliseconds between tokens of each mix, and its ratio to greedy's in the same round."""
    geometry, loads = ("qwen3-0.6b", LOADS) if CUDA else ("tiny", TINY_LOADS)
    context = -(-(loads[0].prompt + loads[0].tokens) // 64) * 64
    vocabulary = GEOMETRIES[geometry]["vocab_size"]
    callers = {name: Callers(mix) for name, mix in arms.MIXES.items()}
    current = callers["greedy"]
    with tempfile.TemporaryDirectory() as directory, shared_weights():
        checkpoint = random_checkpoint.write_config(geometry, Path(directory), context)
        most = max(load.at_once for load in loads)
        worker = build_worker(
            checkpoint, Arm("dense", {"selector": "dense"}), MemoryBudget(PLENTY, PLENTY, most)
        )
    serving = DecodeEngine(worker, None, frozenset(), 10_000, lambda *told: current.emit(*told))
    try:
        for load in loads:
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in callers}
            for index, name in in_turns(callers, ROUNDS + 1):
                current = callers[name]
                current.serve(serving)
                found = current.run(load, vocabulary, np.random.default_rng(index))
                gaps = current.gaps(undisturbed=True) or [float("nan")]
                if index:  # the first is the warm-up
                    times[name].append((1e3 * statistics.median(gaps), found["tpot_mean_ms"]))
            for name, rounds in times.items():
                ratios = [one[0] / greedy[0] for one, greedy in zip(rounds, times["greedy"], strict=True)]
                yield (
                    f"{load}, {name}",
                    {
                        "gap_p50_ms": statistics.median(one[0] for one in rounds),
                        "tpot_mean_ms": statistics.median(one[1] for one in rounds),
                        "over_greedy": statistics.median(ratios),
                    },
                )
    finally:
        serving.close()


def main(options: Options) -> int:
    """Measure; writes sampling.json after every part, FlashInfer's last, as it may have to be compiled."""
    results: dict[str, Any] = {"machine": process_facts(options.commit)}
    path = options.out / "sampling.json"
    parts: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
        "kernels": lambda: (each for rows in options.rows for each in our_kernels(rows)),
        "engine": engine,
        "flashinfer": lambda: (each for rows in options.rows for each in flashinfer_kernels(rows)),
    }
    code = 0
    for part in options.parts:
        print(f"{part}:", flush=True)
        found = results.setdefault(part, {})
        started = time.perf_counter()
        try:
            for name, value in parts[part]():
                found[name] = value
                if isinstance(value, dict):
                    longest = list(value.items())[:6]
                    print(f"  {name}: " + ", ".join(f"{key[:28]} {number:.3f}" for key, number in longest))
                else:
                    print(f"  {shown(value)} us  {name}", flush=True)
                    code |= isinstance(value, str)
        except Exception as error:  # one part's failure must not cost the others' results
            code = 1
            found["error"] = described(error)
            print(f"  {failed(described(error))}", flush=True)
        print(f"  {time.perf_counter() - started:.1f} s", flush=True)
        write_json(path, results)
    return code


def parse() -> Options:
    """Parse the command line."""
    parser = arguments(__doc__, "sampling.json")
    parser.add_argument("--rows", type=by_comma, default=["1", "8", "32", "64"] if CUDA else ["1", "2"])
    parser.add_argument("--parts", type=by_comma, default=["kernels", "engine"] + ["flashinfer"] * CUDA)
    given = parser.parse_args()
    return Options(given.out, given.commit, tuple(map(int, given.rows)), given.parts)


if __name__ == "__main__":
    sys.exit(main(parse()))
