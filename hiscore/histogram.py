"""A histogram that costs a fraction of a microsecond per value; metrics read it once a second."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Upper bounds in seconds, of whole calls and of single tokens.
CALL_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

# The histograms of every model: attribute of what counts -> (metric, help).
OF_CALLS = {
    "queue_wait": ("hiscore_queue_wait_seconds", "Seconds that calls waited until they were launched"),
    "call": ("hiscore_call_seconds", "Seconds from the arrival of a call to its answer, errors left out"),
}


class Histogram:
    """Counts values by size. One thread at a time may write, any may read.

    The buckets' upper `bounds` are inclusive and rise; one more bucket holds what is larger.
    """

    def __init__(self, bounds: Sequence[float] = CALL_SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> dict[str, int]:
        """Count the values up to each bound: the label ``le`` of Prometheus -> count."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return dict(zip(names, accumulate(self._counts), strict=True))
