"""GPU time of some work, kernel by kernel."""

from collections.abc import Callable
from typing import NamedTuple

import torch

NAME_LENGTH = 90


class KernelTime(NamedTuple):
    """A kernel's total time and how often it was launched."""

    name: str
    us: float
    launches: float


def kernel_times(work: Callable[[], object], repeats: int = 1) -> list[KernelTime]:
    """Profile `work` and list its kernels, the longest first.

    Args:
        repeats: Steps that `work` consists of; times and launches are given per step.
    """
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    times = [
        KernelTime(event.key[:NAME_LENGTH], event.device_time_total / repeats, event.count / repeats)
        for event in recorded.key_averages()
        if event.device_time_total
    ]
    return sorted(times, key=lambda kernel: -kernel.us)
