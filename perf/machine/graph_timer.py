"""GPU time of work that a model repeats in each layer, without the gaps between launches."""

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
import triton

from hiscore.device.graphs import capture_stream, garbage_collection_paused

Runs = Sequence[Callable[[], object]]
"""Runs in a graph, as many as a model has layers, so that the host's launch is hidden behind the GPU's work."""
Arm = TypeVar("Arm", bound=Hashable)


def in_turns(arms: Mapping[Arm, Runs], rounds: int = 7) -> dict[Arm, float]:
    """GPU time of one run of each arm, in turns, so that each is timed at the clock that the loaded GPU keeps.

    Args:
        arms: What is compared; for each see `graph_of`.
        rounds: Replays of each that are measured, each behind one that is not.

    Returns:
        Microseconds: the median over replays of a CUDA graph of all runs, divided by their number.
    """
    graphs = {name: graph_of(runs) for name, runs in arms.items()}
    found: dict[Arm, list[float]] = {name: [] for name in arms}
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


def graph_of(runs: Runs) -> torch.cuda.CUDAGraph:
    """Capture runs one after another; their kernels have been compiled and loaded.

    Unlike `torch.cuda.graph` it does not empty the allocator's cache, which takes longer than a short graph.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    stream = capture_stream(torch.cuda.current_device())
    with garbage_collection_paused(), torch.cuda.stream(stream):
        # Other threads may use the device meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for run in runs:
                run()
        finally:
            graph.capture_end()
    return graph


def microseconds(runs: Runs, warmup_ms: int, measured_ms: int) -> float:
    """GPU time of one run: the median over replays of a CUDA graph of all runs, divided by their number.

    Args:
        warmup_ms: Replays before the clock starts.
        measured_ms: Replays measured.
    """
    runs[0]()
    median: float = triton.testing.do_bench(
        graph_of(runs).replay, warmup=warmup_ms, rep=measured_ms, return_mode="median"
    )
    return 1e3 * median / len(runs)
