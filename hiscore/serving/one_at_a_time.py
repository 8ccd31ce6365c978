"""A function that threads ask for, and only one at a time runs."""

import threading
from collections.abc import Callable


class OneAtATime:
    """Runs a function; whoever asks meanwhile does not wait: it is run again, by the thread that runs it.

    `lock` keeps it from running.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        """run: What is run. Has to do all there is to do when it begins, for everyone who has asked."""
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
