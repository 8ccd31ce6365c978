"""A batch between its launch and its answers."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

log = logging.getLogger(__name__)


class LaunchedBatch(Protocol):
    """A batch that is being computed."""

    def finish(self) -> Sequence[Any]:
        """Wait for the batch.

        Returns:
            Each job's answer or `RequestError`, in the order of the jobs.

        Raises:
            Exception: Whatever failed the whole batch.
        """
        ...

    def count(self) -> None:
        """Update metrics, from any thread, when the batch has finished."""


class LaunchedSlice:
    """A slice of a batch that is being computed; others follow."""

    def __init__(
        self, left: int, wait: Callable[[], None], launch_next: Callable[[], "LaunchedBatch | LaunchedSlice"]
    ) -> None:
        """Describe it.

        Args:
            left: Slices of the batch that are yet to be launched.
            wait: Returns when this one has been computed.
            launch_next: Launches the next one; the last one answers the batch.
        """
        self.left, self.finish, self.launch_next = left, wait, launch_next

    def count(self) -> None:
        """Its batch is not complete."""


class FailedBatch:
    """A batch whose launch failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> Sequence[Any]:
        raise self._error

    def count(self) -> None:
        """Nothing was computed."""


def count(batch: LaunchedBatch | LaunchedSlice) -> None:
    """Count a batch that has finished. One that cannot be counted harms nobody."""
    try:
        batch.count()
    except Exception:
        log.exception("a batch was not counted")
