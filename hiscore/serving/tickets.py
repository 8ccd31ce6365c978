"""A call on its way through an engine, a batch on its way through a device, and what both have taken so far."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from hiscore.errors import to_request_error

Job = TypeVar("Job")


class Launched(Protocol):
    """A batch on its way."""

    def finish(self) -> Sequence[Any]:
        """Wait for the batch; each job's answer, in order. May raise, for all of them."""
        ...

    def count(self) -> None:
        """Called when all have been answered: what may wait until then. Must not raise."""


@dataclass(frozen=True)
class Ticket(Generic[Job]):
    """A checked call that waits; `reply_to` is the caller's business, the times are on the monotonic clock."""

    job: Job
    reply_to: Any
    deadline: float
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class QueuedCall(Generic[Job]):
    """A ticket on its way: its parts, how many of them have been launched, and the answers so far."""

    ticket: Ticket[Job]
    cost: int
    parts: Sequence[Job]
    launched: int = 0
    answers: list[Any] = field(default_factory=list)
    over: bool = False  # answered: what is left of it is dropped


@dataclass
class Totals:
    """What an engine has done since its start.

    queue_seconds: waits of calls until their first part was launched; launch_seconds, device_seconds and
    answer_seconds: of batches. rejects: calls that were turned away, by reason: full, late, cancelled.
    """

    queue_seconds: float = 0.0
    launch_seconds: float = 0.0
    device_seconds: float = 0.0
    answer_seconds: float = 0.0
    rejects: Counter[str] = field(default_factory=Counter)


def finished(launched: Launched, jobs: int) -> tuple[Sequence[Any], Exception | None]:
    """The answers of a batch; if it raised, the error that every caller sees, and the one that it was."""
    try:
        return launched.finish(), None
    except Exception as error:
        return [to_request_error(error)] * jobs, error


class Raises:
    """A batch whose launch, or whose end, has raised already."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> Sequence[Any]:
        raise self._error

    def count(self) -> None:
        """Nothing was done."""


class Answered:
    """A batch that has been answered, but not counted."""

    def __init__(self, launched: Launched) -> None:
        self.count = launched.count

    def finish(self) -> Sequence[Any]:
        return []
