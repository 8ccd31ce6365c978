"""Checks that a window offered the intended load; otherwise its numbers mean nothing."""

import math
from collections.abc import Sequence

import numpy as np

from perf.loadgen.generator import Sample

# With fewer calls the p99 is the slowest one.
MIN_CALLS_FOR_P99 = 100
MIN_CALLS = 20
# The count of a Poisson process is this many standard deviations off once in two million times.
SIGMAS = 5.0
# A generator whose p99 lateness exceeds both has not offered the load. Latencies include the lateness, so a share
# of a call's own time is allowed, or a few time slices of a busy machine.
LATE_SHARE, LATE_MS = 0.5, 10.0


class UnsoundLoad(Exception):
    """The load was not the requested one, or too few calls were answered."""


def check_count(name: str, samples: Sequence[Sample], least: int) -> None:
    """Check the number of answered calls.

    Raises:
        UnsoundLoad: Fewer than `least` were answered.
    """
    answered = sum(not sample.error for sample in samples)
    if answered < least:
        raise UnsoundLoad(f"'{name}': {answered} calls were answered, its numbers need {least}")


def check_open_loop(name: str, samples: Sequence[Sample], offered: float) -> None:
    """Check that calls were due at the offered rate and were sent when due, answered or not.

    This catches coordinated omission: a generator that waits for answers sends less when the server is slow.

    Raises:
        UnsoundLoad: They were not.
    """
    due = np.array([sample.intended for sample in samples])
    expected = offered * float(np.ptp(due))
    if abs(len(due) - 1 - expected) > SIGMAS * math.sqrt(max(expected, 1.0)):
        raise UnsoundLoad(f"'{name}': {len(due)} calls were due where {offered:g}/s make {expected:.0f}")
    answered = [sample for sample in samples if not sample.error]
    late = 1e3 * np.array([sample.sent - sample.intended for sample in answered])
    # Allow for the clock's resolution.
    if late.min() < -1e-3:
        raise UnsoundLoad(f"'{name}': a call was sent {-late.min():.3g} ms before it was due")
    taken = 1e3 * float(np.median([sample.done - sample.sent for sample in answered]))
    late99 = float(np.percentile(late, 99))
    if late99 > max(LATE_MS, LATE_SHARE * taken):
        raise UnsoundLoad(
            f"'{name}': calls were sent up to {late99:.1f} ms late (p99), answered after {taken:.1f} (p50)"
        )
