"""GPU time of work that a model repeats in each layer, without the gaps between launches."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import triton

Runs = Sequence[Callable[[], object]]
"""As many as a model has layers, so that the host's launch is hidden behind the GPU's work."""


def microseconds(runs: Runs, warmup_ms: int, measured_ms: int) -> float:
    """GPU time of one run: the median over replays of a CUDA graph of all runs, divided by their number.

    Args:
        runs: What is measured.
        warmup_ms: Replays before the clock starts.
        measured_ms: Replays measured.
    """
    median: float = triton.testing.do_bench(
        _graph(runs).replay, warmup=warmup_ms, rep=measured_ms, return_mode="median"
    )
    return 1e3 * median / len(runs)


def in_turns(arms: Mapping[str, Runs], rounds: int = 7) -> dict[str, float]:
    """The same for several arms in turns, so that each is timed at the clock that the loaded GPU keeps.

    Args:
        arms: What is compared, by name.
        rounds: Replays of each that are measured, each behind one that is not.
    """
    graphs = {name: _graph(runs) for name, runs in arms.items()}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, graph in graphs.items():
            graph.replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(1e3 * begin.elapsed_time(end) / len(arms[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def _graph(runs: Runs) -> torch.cuda.CUDAGraph:
    runs[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return graph
