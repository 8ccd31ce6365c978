"""What a batcher needs of a model: how to price, launch and join jobs, and the limits of a batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from hiscore.serving.launched_batch import LaunchedBatch, LaunchedSlice

Job = TypeVar("Job")


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of a batcher.

    Attributes:
        max_batch_cost: Of the jobs in a batch; a single job or part may cost more.
        max_queue: Requests that wait.
        max_total_cost: Of all requests that wait or are being computed; a single request may cost more.
        max_in_flight: Batches launched and not finished.
        max_alone_cost: Of a job that an idle model runs on the calling thread; 0: it runs none there.
    """

    max_batch_cost: int
    max_queue: int
    max_total_cost: float = math.inf
    max_in_flight: int = 2
    max_alone_cost: int = 0


@dataclass(frozen=True)
class Part(Generic[Job]):
    """What a batch takes of a job.

    Attributes:
        job: What is computed.
        cost: In this batch.
        done: How far the job has then come; None if nothing is left.
        left: The cost of what is left.
    """

    job: Job
    cost: int
    done: int | None = None
    left: int = 0


class BatchPlan(Protocol[Job]):
    """The costs of a batch that is being formed: what a job shares with those before it costs nothing more."""

    def price(self, job: Job, done: int) -> int:
        """What all that is left of a job would cost in this batch; `done` as in `Part`, 0 at first."""
        ...

    def take(self, job: Job, done: int, room: int, at_least_one: bool) -> Part[Job] | None:
        """Add the next part of a job: all that is left, or as much of it as costs no more than `room`.

        Returns:
            The part; None if the smallest one costs more. With `at_least_one` that is taken in this case.
        """
        ...


class WholeJobs(Generic[Job]):
    """`BatchPlan` of jobs that are never divided and share nothing."""

    def __init__(self, cost: Callable[[Job], int]) -> None:
        self._cost = cost

    def price(self, job: Job, done: int) -> int:
        return self._cost(job)

    def take(self, job: Job, done: int, room: int, at_least_one: bool) -> Part[Job] | None:
        cost = self._cost(job)
        return Part(job, cost) if at_least_one or cost <= room else None


class BatchedModel(Protocol[Job]):
    """A model whose jobs can be computed in batches."""

    async_launch: bool
    """`launch` only queues work on a device. Otherwise it computes, and gets its own thread."""
    between: int
    """The cost of a batch that may be launched between two slices of another; 0: none is launched in slices."""

    def cost(self, job: Job) -> int:
        """The size of a whole job by itself, in the unit of `BatchLimits.max_batch_cost`."""
        ...

    def plan(self) -> BatchPlan[Job]:
        """A new, empty batch."""
        ...

    def launch(self, jobs: list[Job]) -> LaunchedBatch | LaunchedSlice:
        """Start a batch of jobs or parts of jobs, or the first slice of it. May raise, which fails all of them."""
        ...

    def join(self, job: Job, answers: Sequence[Any]) -> Any:
        """The answer of a job from those of its parts."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Called with what failed a batch, before its callers are answered."""
