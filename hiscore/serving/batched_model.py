"""What a batcher needs of a model: how to price, split, launch and join jobs, and the limits of a batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hiscore.serving.launched_batch import LaunchedBatch

Job = TypeVar("Job")


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of a batcher.

    Attributes:
        max_batch_cost: Of the jobs in a batch; a single job or part may cost more.
        max_queue: Requests that wait.
        max_total_cost: Of all requests that wait or are being computed; a single request may cost more.
        max_in_flight: Batches launched and not finished.
    """

    max_batch_cost: int
    max_queue: int
    max_total_cost: float = math.inf
    max_in_flight: int = 2


class BatchedModel(Protocol[Job]):
    """A model whose jobs can be computed in batches."""

    async_launch: bool
    """`launch` only queues work on a device. Otherwise it computes, and gets its own thread."""

    def cost(self, job: Job) -> int:
        """The size of a job, in the unit of `BatchLimits.max_batch_cost`."""
        ...

    def split(self, job: Job) -> Sequence[Job]:
        """The job alone, or the parts of a large one, so that other jobs can run in between."""
        ...

    def launch(self, jobs: list[Job]) -> LaunchedBatch:
        """Start a batch of jobs or parts of jobs. May raise, which fails all of them."""
        ...

    def join(self, job: Job, answers: Sequence[Any]) -> Any:
        """The answer of a job from those of its parts."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Called with what failed a batch, before its callers are answered."""
