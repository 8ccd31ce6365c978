"""The share of time in which the GPU does nothing, from the profiler's record of every kernel and copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Kernels that follow each other within a graph are about a microsecond apart, and no host could fill that gap.
LONG_GAP_US = 10.0


@dataclass(frozen=True)
class Idle:
    """Shares, 0 to 1, of the time between the first kernel's begin and the last one's end."""

    any_gap: float
    long_gaps: float
    """In gaps of more than `LONG_GAP_US` alone: those that the host left."""
    span_ms: float


def idle_share(intervals: Sequence[tuple[float, float]], long_gap: float = LONG_GAP_US) -> Idle:
    """From (begin, end) in microseconds, in any order and overlapping as they like."""
    if not intervals:
        raise ValueError("nothing ran on the GPU")
    ordered = sorted(intervals)
    first, busy_until = ordered[0][0], ordered[0][0]
    gaps = []
    for begin, end in ordered:
        gaps.append(max(0.0, begin - busy_until))
        busy_until = max(busy_until, end)
    span = busy_until - first
    return Idle(sum(gaps) / span, sum(gap for gap in gaps if gap > long_gap) / span, span / 1e3)


def profiled(work: Callable[[], object]) -> Idle:
    """Idle share while `work` runs, waiting at its end; the profiler slows launches down a little."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    found = [event for event in recorded.events() or () if event.device_type == DeviceType.CUDA]
    return idle_share([(event.time_range.start, event.time_range.end) for event in found])
