"""A request that a batcher has queued or launched."""

import time
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from hiscore.serving.batched_model import Job


class ReplyTo(Protocol):
    """Where the answer of a request goes."""

    def send(self, answer: Any) -> Any:
        """Send the answer or `RequestError`. Must not raise."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the caller has gone. This is a round trip to the server, and may raise."""
        ...


@dataclass(eq=False)
class QueuedRequest(Generic[Job]):
    """A validated request; all fields but the first four are the batcher's.

    Attributes:
        job: What the model computes.
        reply_to: Where the answer goes.
        deadline: When it is no longer worth starting, on the monotonic clock.
        since: When it arrived, on the monotonic clock.
        cost: What the whole job counts in a batch.
        done: How far the parts launched so far have come, see `Part`; None: nothing is left.
        launched: How many parts have been launched.
        answers: Those of the first parts.
        answered: It needs no answer any more.
    """

    job: Job
    reply_to: ReplyTo
    deadline: float
    since: float = field(default_factory=time.monotonic)
    cost: int = 0
    done: int | None = 0
    launched: int = 0
    answers: list[Any] = field(default_factory=list)
    answered: bool = False
