"""The time of the next launch, just before the running batches end, and the thread that makes it.

A launched batch cannot be changed: a newcomer waits for all of it. Launched too late, the device idles. So the
time that a batch takes is predicted from its cost, by a line through the last ones, and the next is due as long
before the end of the running ones as a launch takes and predictions err.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

FORGET = 1 / 64
"""Weight of the latest batch in the running means."""
WARM_UP_BATCHES = 16
"""Batches before predictions count."""
ERRORS = 2.0
"""Mean prediction errors by which the next batch is launched early."""
WAKE_S = 2e-4
"""The time that a thread may take to wake up."""


class LaunchPace:
    """Predicts the end of the launched batches that have not finished; all calls are made under one lock."""

    def __init__(self) -> None:
        self._running: deque[tuple[float, float]] = deque()  # cost, when it began if the device was idle
        self._last_end = 0.0
        self._seen = 0
        self._cost = self._seconds = self._cost_squared = self._cost_seconds = 0.0  # decaying means
        self._error = self._launch_s = 0.0

    def launched(self, cost: float, began: float, now: float) -> None:
        """Note a batch whose launch took from `began` to `now`, in seconds of the monotonic clock."""
        # The first kernels run while the rest are being launched.
        self._launch_s += (now - began - self._launch_s) * max(FORGET, 1 / (self._seen + 1))
        self._running.append((cost, (began + now) / 2))

    def finished(self, now: float) -> None:
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
        """Forget the oldest batch, which has failed: its time says nothing about others."""
        self._running.popleft()
        self._last_end = now

    def predict(self, cost: float) -> float:
        """Return the seconds that a batch of this cost takes."""
        variance = self._cost_squared - self._cost**2
        if variance <= 1e-6 * self._cost_squared:
            return self._seconds
        slope = max(0.0, (self._cost_seconds - self._cost * self._seconds) / variance)
        return max(0.0, self._seconds + slope * (cost - self._cost))

    def due(self) -> float:
        """Return the time of the next launch, on the monotonic clock; 0: at once."""
        if not self._running or self._seen < WARM_UP_BATCHES:
            return 0.0
        end = max(self._last_end, self._running[0][1])
        end += sum(self.predict(cost) for cost, _ in self._running)
        return end - self._launch_s - ERRORS * self._error - WAKE_S


class Alarm:
    """Calls a function at a given time, from a thread of its own; setting it again replaces the time."""

    def __init__(self, ring: Callable[[], None], name: str) -> None:
        """Start the thread, with this name; `ring` must not raise."""
        self._ring = ring
        self._at: float | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def set(self, at: float) -> None:
        """Ring at this time on the monotonic clock."""
        with self._changed:
            if self._at != at:
                self._at = at
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._ring()

    def _wait(self) -> bool:
        """Wait until it rings, or return False once it is closed."""
        with self._changed:
            while not self._closed:
                left = None if self._at is None else self._at - time.monotonic()
                if left is not None and left <= 0:
                    self._at = None
                    return True
                self._changed.wait(left)
            return False


class OneAtATime:
    """Runs a function on one thread at a time, again if another asked meanwhile; `lock` keeps it from running."""

    def __init__(self, run: Callable[[], None]) -> None:
        """Wrap `run`, each call of which must do everything that was asked for before it began."""
        self._run = run
        self._asked = False
        self.lock = threading.Lock()

    def __call__(self) -> None:
        # First asked, then tried: a thread that is about to end either sees this, or has released the lock.
        self._asked = True
        while self._asked and self.lock.acquire(blocking=False):
            try:
                self._asked = False
                self._run()
            finally:
                self.lock.release()
