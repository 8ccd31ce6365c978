"""The interface between a batcher, the model whose jobs it batches, and the callers that it answers."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of a batcher.

    Attributes:
        max_batch_cost: The cost of a batch; a single job or part may cost more.
        max_queue: Requests that wait.
        max_total_cost: The cost of all that waits or is being computed; a single request may cost more.
        max_in_flight: Batches launched and not finished.
        max_alone_cost: The cost of a job that an idle model runs on the calling thread; 0: none runs there.
    """

    max_batch_cost: int
    max_queue: int
    max_total_cost: float = math.inf
    max_in_flight: int = 2
    max_alone_cost: int = 0


@dataclass(frozen=True)
class Part(Generic[Job]):
    """The part of a job that a batch takes.

    Attributes:
        job: The part, as a job of its own.
        cost: Its cost in this batch.
        done: The job's progress behind this part; None if nothing is left.
        left: The cost of the rest.
    """

    job: Job
    cost: int
    done: int | None = None
    left: int = 0


class BatchPlan(Generic[Job]):
    """The costs of a batch that is being formed: what a job shares with those before it costs nothing more.

    Of itself, jobs are never divided and share nothing.
    """

    def __init__(self, cost: Callable[[Job], int]) -> None:
        self._whole_cost = cost

    def price(self, job: Job, done: int) -> int:
        """Return the cost in this batch of all that is left of a job; `done` as in `Part`, 0 at first."""
        return self._whole_cost(job)

    def take(self, job: Job, done: int, room: int, at_least_one: bool) -> Part[Job] | None:
        """Add the next part of a job: all that is left, or as much of it as costs no more than `room`.

        Return None if the smallest part costs more; with `at_least_one` take that part all the same.
        """
        cost = self._whole_cost(job)
        return Part(job, cost) if at_least_one or cost <= room else None


class LaunchedBatch(Protocol):
    """A batch that has been launched to its end."""

    def finish(self) -> Sequence[Any]:
        """Wait for the batch and return each job's answer or `RequestError`; raise what failed the whole batch."""
        ...

    def count(self) -> None:
        """Update metrics, from any thread, when the batch has finished."""


@dataclass(frozen=True)
class LaunchedSlice:
    """A launched slice of a batch, of which `left` others have yet to be launched; `wait` waits for this one."""

    left: int
    wait: Callable[[], None]


class BatchedModel(Protocol[Job]):
    """A model whose jobs can be computed in batches."""

    async_launch: bool
    """`launch` only queues work on a device. Otherwise it computes, and gets its own thread."""
    between: int
    """The cost of a batch that may be launched between two slices of another; 0: none is launched in slices."""

    def cost(self, job: Job) -> int:
        """Return the size of a whole job by itself, in the unit of `BatchLimits.max_batch_cost`."""
        ...

    def plan(self) -> BatchPlan[Job]: ...

    def launch(self, jobs: list[Job]) -> Iterator[LaunchedSlice | LaunchedBatch]:
        """Launch a batch of jobs or parts of jobs: each step launches a slice, the last one gives the batch.

        The batcher makes the iterator under its lock: the work begins with the first step. Steps may be taken by
        different threads. One that raises fails the whole batch.
        """
        ...

    def join(self, job: Job, answers: Sequence[Any]) -> Any: ...

    def on_failure(self, error: Exception) -> None:
        """Act on the error of a failed batch, before its callers are answered."""


class Caller(Protocol):
    """The destination of a request's answer."""

    def send(self, answer: Any) -> Any:
        """Send the answer or `RequestError`. Must not raise."""
        ...

    def is_cancelled(self) -> bool:
        """Ask whether the caller has gone: a round trip to the server, which may raise."""
        ...


@dataclass(eq=False)
class QueuedRequest(Generic[Job]):
    """A validated request; all fields but the first four are the batcher's.

    Attributes:
        deadline: The time after which it is not worth starting, on the monotonic clock.
        since: The time of its arrival, on the monotonic clock.
        done: The progress of the parts launched so far (`Part.done`); None: nothing is left.
        launched: The number of these parts, the first of which have `answers`.
    """

    job: Job
    reply_to: Caller
    deadline: float
    since: float = field(default_factory=time.monotonic)
    cost: int = 0
    done: int | None = 0
    launched: int = 0
    answers: list[Any] = field(default_factory=list)
    answered: bool = False
