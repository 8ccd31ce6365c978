"""What makes a window's numbers worth nothing, though every answer is right."""

import math
from collections.abc import Sequence

import numpy as np

from perf.loadgen.generator import Sample

# The p99 of fewer calls is their worst one.
MIN_CALLS_FOR_P99 = 100
MIN_CALLS = 20
# A Poisson process counts so many standard deviations too few or too many once in two million times.
SIGMAS = 5.0
# A generator that sends this late, at the 99th percentile, has not offered the load that it was asked for.
# Latencies hold its lateness, so a share of what a call takes is allowed, or a few time slices of a busy machine.
LATE_SHARE, LATE_MS = 0.5, 10.0


class UnsoundLoad(Exception):
    """The load was not what the window says, or too little came of it; the message says how."""


def check_count(name: str, samples: Sequence[Sample], least: int) -> None:
    """Raises:
    UnsoundLoad: fewer than `least` calls were answered.
    """
    answered = sum(not sample.error for sample in samples)
    if answered < least:
        raise UnsoundLoad(f"'{name}': {answered} calls were answered, its numbers need {least}")


def check_open_loop(name: str, samples: Sequence[Sample], offered: float) -> None:
    """That calls were sent when they were due, answered or not, and due at the rate that was asked for.

    A generator that waits for answers sends fewer, just when the server is slow: coordinated omission.

    Raises:
        UnsoundLoad: they were not.
    """
    due = np.array([sample.intended for sample in samples])
    expected = offered * float(np.ptp(due))
    if abs(len(due) - 1 - expected) > SIGMAS * math.sqrt(max(expected, 1.0)):
        raise UnsoundLoad(f"'{name}': {len(due)} calls were due where {offered:g}/s make {expected:.0f}")
    answered = [sample for sample in samples if not sample.error]
    late = 1e3 * np.array([sample.sent - sample.intended for sample in answered])
    # A clock's last digit, not a call that was sent ahead of its time.
    if late.min() < -1e-3:
        raise UnsoundLoad(f"'{name}': a call was sent {-late.min():.3g} ms before it was due")
    taken = 1e3 * float(np.median([sample.done - sample.sent for sample in answered]))
    late99 = float(np.percentile(late, 99))
    if late99 > max(LATE_MS, LATE_SHARE * taken):
        raise UnsoundLoad(
            f"'{name}': calls were sent up to {late99:.1f} ms late (p99), answered after {taken:.1f} (p50)"
        )
