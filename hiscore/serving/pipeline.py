"""Two batches in flight: while the device computes one, the host packs and launches the next.

`submit` returns when there is room for one more, not when its own batch is done: so the batcher of Triton fills
the next batch for as long as it would wait anyway. Results are awaited and sent from a thread of their own.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol


class Finish(Protocol):
    """Waits for a launched batch and answers its requests; must not raise."""

    def __call__(self) -> None: ...


class Pipeline:
    """Runs what `submit` is given: the launch on the caller's thread, the end of it on the pipeline's."""

    def __init__(self, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"a pipeline holds at least one batch, not {depth}")
        self._depth = depth
        self._in_flight = 0
        self._changed = threading.Condition()
        self._launched: SimpleQueue[Finish | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._complete, name="hiscore-complete", daemon=True)
        self._thread.start()

    def submit(self, launch: Callable[[], Finish]) -> None:
        """Launch a batch, then wait until there is room for the next. What `launch` raises comes back here."""
        finish = launch()
        with self._changed:
            self._in_flight += 1
        self._launched.put(finish)
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight < self._depth)

    def close(self) -> None:
        """Finish what is in flight and end the thread."""
        self._launched.put(None)
        self._thread.join()

    def _complete(self) -> None:
        while (finish := self._launched.get()) is not None:
            try:
                finish()
            finally:
                with self._changed:
                    self._in_flight -= 1
                    self._changed.notify_all()
