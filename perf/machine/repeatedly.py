"""A function that is called again and again beside other work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeatedly(call: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Call a function on a thread of its own as long as the context lasts.

    Args:
        interval_s: Seconds before the first call, and between calls.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(interval_s):
            call()

    thread = threading.Thread(target=run, name="repeatedly", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
