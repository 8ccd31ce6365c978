"""When the next batch is due: just before those that are being computed end.

A batch that is launched is out of the queue's hands: whoever comes then waits for all of it, however short.
Launched too late, the device stands still. So what a batch takes is predicted from its cost, by a line through
what the last ones took, and the next is due as long before their end as a launch takes and predictions err.

Pure: its owner gives it the time and makes all calls under one lock.
"""

from collections import deque

FORGET = 1 / 64
"""Weight of the latest batch in what is remembered of all."""
WARM_UP_BATCHES = 16
"""Batches before predictions count."""
ERRORS = 2.0
"""How many mean prediction errors early the next batch is launched."""
WAKE_S = 2e-4
"""What a thread may take to wake up."""


class LaunchPace:
    """Predicts the end of the batches that were launched and have not finished."""

    def __init__(self) -> None:
        self._running: deque[tuple[float, float]] = deque()  # cost, when it began if the device was idle
        self._last_end = 0.0
        self._seen = 0
        self._cost = self._seconds = self._cost_squared = self._cost_seconds = 0.0  # decaying means
        self._error = self._launch_s = 0.0

    def launched(self, cost: float, began: float, now: float) -> None:
        """A batch was launched: from `began` to `now`, seconds on the monotonic clock."""
        # The first kernels run while the rest are being launched.
        self._launch_s += (now - began - self._launch_s) * max(FORGET, 1 / (self._seen + 1))
        self._running.append((cost, (began + now) / 2))

    def finished(self, now: float) -> None:
        """The oldest batch has finished."""
        cost, since = self._running.popleft()
        seconds = now - max(since, self._last_end)
        self._last_end = now
        weight = max(FORGET, 1 / (self._seen + 1))
        if self._seen:
            self._error += (abs(seconds - self.predict(cost)) - self._error) * weight
        self._seen += 1
        self._cost += (cost - self._cost) * weight
        self._seconds += (seconds - self._seconds) * weight
        self._cost_squared += (cost * cost - self._cost_squared) * weight
        self._cost_seconds += (cost * seconds - self._cost_seconds) * weight

    def forget(self, now: float) -> None:
        """The oldest batch has failed: what it took says nothing about others."""
        self._running.popleft()
        self._last_end = now

    def predict(self, cost: float) -> float:
        """Seconds that a batch of this cost takes."""
        variance = self._cost_squared - self._cost**2
        if variance <= 1e-6 * self._cost_squared:
            return self._seconds
        slope = max(0.0, (self._cost_seconds - self._cost * self._seconds) / variance)
        return max(0.0, self._seconds + slope * (cost - self._cost))

    def due(self) -> float:
        """When the next batch is to be launched, on the monotonic clock; 0: at once."""
        if not self._running or self._seen < WARM_UP_BATCHES:
            return 0.0
        end = max(self._last_end, self._running[0][1])
        end += sum(self.predict(cost) for cost, _ in self._running)
        return end - self._launch_s - ERRORS * self._error - WAKE_S
