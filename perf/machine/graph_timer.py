"""GPU time of work that a model repeats in each layer, without the gaps between launches."""

from collections.abc import Callable, Sequence

import torch
import triton


def microseconds(runs: Sequence[Callable[[], object]], warmup_ms: int, measured_ms: int) -> float:
    """GPU time of one run: the median over replays of a CUDA graph of all runs, divided by their number.

    Args:
        runs: As many as a model has layers, so that the host's launch is hidden behind the GPU's work.
        warmup_ms: Replays before the clock starts.
        measured_ms: Replays measured.
    """
    runs[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    median: float = triton.testing.do_bench(
        graph.replay, warmup=warmup_ms, rep=measured_ms, return_mode="median"
    )
    return 1e3 * median / len(runs)
