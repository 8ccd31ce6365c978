"""GPU time of what a model's layers repeat, without the gaps between launches."""

from collections.abc import Callable, Sequence

import torch
import triton


def microseconds(runs: Sequence[Callable[[], object]], warmup_ms: int, measured_ms: int) -> float:
    """GPU time of one of the runs, the median over replays of a graph that holds all of them.

    As many as a model has layers are long enough to fill the gap between two launches on the host.
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
