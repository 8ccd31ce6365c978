"""A thread for requests that take long to read, a large text for example, so that no other waits for them."""

import threading
from collections.abc import Callable
from queue import Full, Queue

from hiscore.errors import Code, RequestError

MAX_WAITING = 16


class BackgroundReader:
    """Reads one request after another; at most `MAX_WAITING` wait."""

    def __init__(self, what: str) -> None:
        """Start the thread.

        Args:
            what: What is read here, for the error of one too many.
        """
        self._what = what
        self._waiting: Queue[Callable[[], None] | None] = Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="hiscore-reader", daemon=True)
        self._thread.start()

    def submit(self, read: Callable[[], None]) -> None:
        """Have the thread call `read`, which must not raise.

        Raises:
            RequestError: Too many wait.
        """
        try:
            self._waiting.put_nowait(read)
        except Full:
            busy = f"{MAX_WAITING} {self._what} wait to be read"
            raise RequestError(f"the server is full: {busy}", Code.UNAVAILABLE) from None

    def close(self) -> None:
        """Read what was accepted, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (read := self._waiting.get()) is not None:
            read()
