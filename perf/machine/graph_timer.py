"""GPU time of work that a model repeats in each layer, measured for long enough to be recorded."""

import triton

from hiscore.graph_timer import Runs, graph_of


def microseconds(runs: Runs, warmup_ms: int, measured_ms: int) -> float:
    """GPU time of one run: the median over replays of a CUDA graph of all runs, divided by their number.

    Args:
        runs: What is measured.
        warmup_ms: Replays before the clock starts.
        measured_ms: Replays measured.
    """
    runs[0]()
    median: float = triton.testing.do_bench(
        graph_of(runs).replay, warmup=warmup_ms, rep=measured_ms, return_mode="median"
    )
    return 1e3 * median / len(runs)
