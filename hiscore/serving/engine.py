"""A model's own queue and its two threads: one forms batches and launches them, one awaits and answers them.

Triton's queue cannot be the one that counts. Any limit or time-out in its config turns its prefetching off, and
then a call that arrives while the model is at work may sleep for half a second. So `execute` only checks its calls
and puts them here, and batches are formed at the last moment, by cost, from all that waits.

While the device computes one batch, the next is launched behind it (`depth` 2). A thread of its own sends the
answers, so neither the device nor the forming of batches waits for that.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from hiscore.errors import Code, RequestError, visible

Job = TypeVar("Job")

# What a launch returns: waits for the batch and gives each job's answer, in order, or raises for all of them.
Finish = Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class Ticket(Generic[Job]):
    """A checked call that waits; `reply_to` is the caller's business, `deadline` on the monotonic clock."""

    job: Job
    reply_to: Any
    deadline: float


class Engine(Generic[Job]):
    """Runs tickets in batches, first come, first served.

    launch: starts a batch and returns its `Finish`; answer: sends a ticket's answer or `RequestError`; after:
    called when a batch has been answered, with the exception that ended it, if one did; cost: of a job, in the
    unit of `budget`, which a batch exceeds only if it is a single job. Of these only `launch` may raise.
    """

    def __init__(
        self,
        launch: Callable[[list[Job]], Finish],
        answer: Callable[[Ticket[Job], Any], None],
        after: Callable[[Exception | None], None],
        cost: Callable[[Job], int],
        budget: int,
        max_queue: int,
        depth: int = 2,
    ) -> None:
        self._launch, self._answer, self._after, self._cost = launch, answer, after, cost
        self._budget, self._max_queue, self._depth = budget, max_queue, depth
        self._waiting: deque[Ticket[Job]] = deque()
        self._in_flight = 0
        self._closing = False
        self._changed = threading.Condition()
        self._launched: SimpleQueue[tuple[list[Ticket[Job]], Finish] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"hiscore-{work.__name__[1:]}", daemon=True)
            for work in (self._launch_all, self._answer_all)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: Ticket[Job]) -> None:
        """Put a ticket into the queue.

        Raises:
            RequestError: UNAVAILABLE, the queue is full.
        """
        with self._changed:
            if len(self._waiting) >= self._max_queue:
                raise RequestError(
                    f"the server is full: {self._max_queue} calls wait already, try again later",
                    Code.UNAVAILABLE,
                )
            self._waiting.append(ticket)
            self._changed.notify_all()

    def close(self) -> None:
        """Run what waits, answer it, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _launch_all(self) -> None:
        while (batch := self._next_batch()) is not None:
            if not batch:
                continue
            try:
                finish = self._launch([ticket.job for ticket in batch])
            except Exception as error:
                finish = _raising(error)
            self._launched.put((batch, finish))
        self._launched.put(None)

    def _next_batch(self) -> list[Ticket[Job]] | None:
        """Wait for room and work; what has waited too long is answered on the way. None: the engine closes."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    (self._waiting and self._in_flight < self._depth) or (self._closing and not self._waiting)
                )
            )
            if not self._waiting:
                return None
            now, total = time.monotonic(), 0
            batch: list[Ticket[Job]] = []
            expired: list[Ticket[Job]] = []
            while self._waiting:
                ticket = self._waiting[0]
                cost = self._cost(ticket.job)
                if ticket.deadline < now:
                    expired.append(self._waiting.popleft())
                elif batch and total + cost > self._budget:
                    break
                else:
                    batch.append(self._waiting.popleft())
                    total += cost
            self._in_flight += bool(batch)
        for ticket in expired:
            self._answer(ticket, RequestError("Request timeout expired in the queue", Code.UNAVAILABLE))
        return batch

    def _answer_all(self) -> None:
        while (launched := self._launched.get()) is not None:
            batch, finish = launched
            failure = None
            try:
                answers = finish()
            except Exception as error:
                failure = error
                answers = [visible(error)] * len(batch)
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()
            for ticket, answer in zip(batch, answers, strict=True):
                self._answer(ticket, answer)
            self._after(failure)


def _raising(error: Exception) -> Finish:
    def finish() -> Sequence[Any]:
        raise error

    return finish
