"""A batch between its launch and its answers."""

from collections.abc import Sequence
from typing import Any, Protocol


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
        """Update metrics; called after all callers have been answered."""


class FailedBatch:
    """A batch whose launch failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> Sequence[Any]:
        raise self._error

    def count(self) -> None:
        """Nothing was computed."""


class CompletedBatch:
    """A batch that has been answered, but not counted; None for one that failed, which counts nothing."""

    def __init__(self, batch: LaunchedBatch | None) -> None:
        self._batch = batch

    def finish(self) -> Sequence[Any]:
        return []

    def count(self) -> None:
        if self._batch is not None:
            self._batch.count()
