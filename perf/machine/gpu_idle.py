"""The share of time in which the GPU is idle, from the profiler's record of every kernel and copy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Kernels of one CUDA graph follow each other within about a microsecond; no host could fill such a gap.
LONG_GAP_US = 10.0


@dataclass(frozen=True)
class Idle:
    """Shares, 0 to 1, of the time from the start of the first kernel to the end of the last one."""

    any_gap: float
    long_gaps: float
    """Gaps longer than `LONG_GAP_US` only: those that a faster host could have filled."""
    span_ms: float


def idle_share(intervals: Sequence[tuple[float, float]], long_gap: float = LONG_GAP_US) -> Idle:
    """The time that no interval covers.

    Args:
        intervals: Begin and end in microseconds, in any order; they may overlap.
        long_gap: Microseconds above which a gap is long.

    Raises:
        ValueError: There is no interval.
    """
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
    """The idle share while `work` runs to its end on the GPU. Profiling slows launches down a little."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    events = [event for event in recorded.events() or () if event.device_type == DeviceType.CUDA]
    return idle_share([(event.time_range.start, event.time_range.end) for event in events])
