"""Ending early what a task waits for: because of a timeout, or because the caller has left.

`asyncio.wait_for` and `asyncio.wait` would run the work in a task of its own, which takes longer than most of it.
"""

import asyncio
import sys


class Interrupted(Exception):
    """The block was interrupted."""


class Interruptible:
    """``with Interruptible() as block``: `interrupt` ends what the current task waits for inside.

    Raises:
        Interrupted: At the end of the block, which was interrupted before it was done.
    """

    def __enter__(self) -> "Interruptible":
        task = asyncio.current_task()
        assert task is not None, "only a task can be interrupted"
        self._task, self._open, self._interrupted = task, True, False
        return self

    def interrupt(self) -> None:
        """Cancel what is waited for; does nothing once the block has ended. Not for the task itself."""
        if self._open and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open = False
        if self._interrupted and kind is not None:
            if sys.version_info >= (3, 11):
                self._task.uncancel()
            raise Interrupted from None
