"""Calls a function at a given time, from a thread of its own."""

import threading
import time
from collections.abc import Callable


class Alarm:
    """One time at a time: setting it again replaces the time before."""

    def __init__(self, ring: Callable[[], None], name: str) -> None:
        """Start the thread.

        Args:
            ring: What is called. Must not raise.
            name: What the thread is called.
        """
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
        """End the thread; what is set does not ring any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._ring()

    def _wait(self) -> bool:
        """Wait until it rings; False: it was closed."""
        with self._changed:
            while not self._closed:
                left = None if self._at is None else self._at - time.monotonic()
                if left is not None and left <= 0:
                    self._at = None
                    return True
                self._changed.wait(left)
            return False
