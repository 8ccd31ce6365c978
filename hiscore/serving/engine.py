"""A model's own queue, and the thread that awaits and answers the batches formed from it.

Triton's queue cannot be the one that counts. Any limit or time-out in its config turns its prefetching off, and
then a call that arrives while the model is at work may sleep for half a second. So `execute` only checks its calls
and puts them here, and batches are formed at the last moment, by cost, from all that waits.

While the device computes one batch, the next is launched behind it (`depth` 2). A launch that only queues work on
a device is made `inline`, by whoever finds room for it: the caller of `submit`, or the thread that has just seen
a batch end; a change of threads would cost each call 0.3 ms. A launch that computes gets a thread of its own, so
that calls are still accepted or refused meanwhile.

A call that finds nothing else at work may be run on the spot (`run_alone`) and answered by what `execute` returns,
which reaches the caller about 0.9 ms sooner than a response sender does.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from hiscore.errors import Code, RequestError, visible

log = logging.getLogger(__name__)

Job = TypeVar("Job")

# After so long in the queue a caller may have gone; so many are asked before a batch is formed.
ASK_AFTER_S = 0.1
MOST_ASKED = 16


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


class Engine(Generic[Job]):
    """Runs tickets in batches, first come, first served.

    launch: starts a batch, may raise; answer: sends a ticket's answer or `RequestError`; failed: called when the
    calls of a batch that raised have been answered; abandoned: whether a ticket's caller has gone, asked of those
    that had to wait; cost: of a job, in the unit of `budget`, which a batch exceeds only if it is a single job.
    """

    def __init__(
        self,
        launch: Callable[[list[Job]], Launched],
        answer: Callable[[Ticket[Job], Any], None],
        failed: Callable[[Exception], None],
        abandoned: Callable[[Ticket[Job]], bool],
        cost: Callable[[Job], int],
        budget: int,
        max_queue: int,
        inline: bool,
        depth: int = 2,
    ) -> None:
        self._launch, self._answer, self._failed = launch, answer, failed
        self._abandoned, self._cost = abandoned, cost
        self._budget, self._max_queue, self._inline, self._depth = budget, max_queue, inline, depth
        self._waiting: deque[Ticket[Job]] = deque()
        self._in_flight = 0
        self._closing = False
        self._changed = threading.Condition()
        self._launching = threading.Lock()  # batches are launched in the order in which they were formed
        self._launched: SimpleQueue[tuple[list[Ticket[Job]], Launched] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"hiscore-{work.__name__[1:]}", daemon=True)
            for work in ([self._answer_all] if inline else [self._answer_all, self._launch_all])
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tickets: Sequence[Ticket[Job]]) -> list[Ticket[Job]]:
        """Put tickets into the queue; returns those for which it has no room."""
        with self._changed:
            room = max(0, self._max_queue - len(self._waiting))
            if self._inline and self._in_flight < self._depth:
                room = max(room, 1)  # what is launched at once does not wait
            self._waiting.extend(tickets[:room])
            self._changed.notify_all()
        if self._inline:
            self._launch_ready()
        return list(tickets[room:])

    def run_alone(self, job: Job) -> Any | None:
        """Run a job on the calling thread if nothing else waits or is in flight; its answer, else None.

        A job of more than a part of the budget is not: meanwhile no other call could even be refused. Only for an
        engine whose launches are inline and whose `submit` is called from the same thread.
        """
        with self._changed:
            small = self._inline and self._cost(job) <= self._budget // 4
            if not small or self._waiting or self._in_flight or self._closing:
                return None
            self._in_flight = 1
        with self._launching:
            launched = self._try_launch([job])
        answers, failure = _finished(launched, 1)
        # Counting, or facing a failure, is left to the other thread: this one has an answer to deliver.
        self._launched.put(([], _Answered(launched) if failure is None else _Raises(failure)))
        return answers[0]

    def close(self) -> None:
        """Run what waits, answer it, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._in_flight)
        self._launched.put(None)
        for thread in self._threads:
            thread.join()

    def _launch_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._has_room_and_work() or (self._closing and not self._waiting)
                )
                if not self._waiting:
                    return
            self._launch_ready()

    def _has_room_and_work(self) -> bool:
        return bool(self._waiting) and self._in_flight < self._depth

    def _launch_ready(self) -> None:
        """Launch whatever there is room for."""
        with self._launching:
            while batch := self._next_batch():
                self._launched.put((batch, self._try_launch([ticket.job for ticket in batch])))

    def _try_launch(self, jobs: list[Job]) -> Launched:
        try:
            return self._launch(jobs)
        except Exception as error:
            return _Raises(error)

    def _next_batch(self) -> list[Ticket[Job]]:
        """The next batch, if there is room and work; who waits in vain is answered on the way."""
        batch: list[Ticket[Job]] = []
        in_vain: list[tuple[Ticket[Job], RequestError]] = []
        gone = self._gone()
        with self._changed:
            now, total = time.monotonic(), 0
            while self._has_room_and_work():
                ticket = self._waiting[0]
                cost = self._cost(ticket.job)
                if id(ticket) in gone:
                    in_vain.append((ticket, RequestError("the call was cancelled", Code.CANCELLED)))
                elif ticket.deadline < now:
                    late = RequestError("Request timeout expired in the queue", Code.UNAVAILABLE)
                    in_vain.append((ticket, late))
                elif batch and total + cost > self._budget:
                    break
                else:
                    batch.append(ticket)
                    total += cost
                self._waiting.popleft()
            self._in_flight += bool(batch)
            self._changed.notify_all()
        for ticket, reason in in_vain:
            self._answer(ticket, reason)
        return batch

    def _gone(self) -> set[int]:
        """Which of the first that wait have callers no more, by `id`."""
        with self._changed:
            if not self._has_room_and_work():
                return set()
            # Asking is a round trip to the server: not for calls that are launched as they come.
            since = time.monotonic() - ASK_AFTER_S
            waited = [ticket for ticket in islice(self._waiting, MOST_ASKED) if ticket.since < since]
        try:
            return {id(ticket) for ticket in waited if self._abandoned(ticket)}
        except Exception:
            log.exception("whether callers have gone is not known: they are served")
            return set()

    def _answer_all(self) -> None:
        while (entry := self._launched.get()) is not None:
            batch, launched = entry
            answers, failure = _finished(launched, len(batch))
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()
            for ticket, answer in zip(batch, answers, strict=True):
                self._answer(ticket, answer)
            try:
                launched.count() if failure is None else self._failed(failure)
            except Exception:
                log.exception("a batch was answered but not counted")
            if self._inline:
                self._launch_ready()


def _finished(launched: Launched, jobs: int) -> tuple[Sequence[Any], Exception | None]:
    """The answers of a batch; if it raised, the error that every caller sees, and the one that it was."""
    try:
        return launched.finish(), None
    except Exception as error:
        # Without jobs the callers have been told already, and the log has been.
        return [visible(error)] * jobs if jobs else [], error


class _Raises:
    """A batch whose launch, or whose end, has raised already."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def finish(self) -> Sequence[Any]:
        raise self._error

    def count(self) -> None:
        """Nothing was done."""


class _Answered:
    """A batch that has been answered, but not counted."""

    def __init__(self, launched: Launched) -> None:
        self.count = launched.count

    def finish(self) -> Sequence[Any]:
        return []
