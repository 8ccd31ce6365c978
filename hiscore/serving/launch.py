"""What a batcher launches next: a batch at once, or a slice of one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from hiscore.serving.batched_model import Job
from hiscore.serving.launched_batch import LaunchedBatch, LaunchedSlice
from hiscore.serving.queued_request import QueuedRequest

Launched = LaunchedBatch | LaunchedSlice


@dataclass(frozen=True)
class Launch(Generic[Job]):
    """A batch, or what is left of one.

    Attributes:
        requests: Whom it answers.
        cost: Of all that is left.
        start: Launches it, or the next slice.
    """

    requests: list[QueuedRequest[Job]]
    cost: float
    start: Callable[[], Launched]

    def after(self, launched: Launched) -> "Launch[Job] | None":
        """What is left when this has been launched."""
        if not isinstance(launched, LaunchedSlice):
            return None
        left = self.cost * launched.left / (launched.left + 1)
        return Launch(self.requests, left, launched.launch_next)


def launch_rest(launched: Launched) -> LaunchedBatch:
    """Launch what is left of a batch at once."""
    while isinstance(launched, LaunchedSlice):
        launched = launched.launch_next()
    return launched
