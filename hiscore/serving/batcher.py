"""A model's own queue, and the thread that awaits and answers the batches formed from it.

Triton's queue cannot be the one that counts. Any limit or time-out in its config turns its prefetching off, and
then a call that arrives while the model is at work may sleep for half a second. So `execute` only checks its calls
and puts them here, and batches are formed at the last moment, by cost, from all that waits.

While the device computes one batch, the next is launched behind it (`depth` 2). A launch that only queues work on
a device is made `inline`, by whoever finds room for it: the caller of `submit`, or the thread that has just seen
a batch end; a change of threads would cost each call 0.3 ms. A launch that computes gets a thread of its own, so
that calls are still accepted or refused meanwhile.

A job that is many batches large is split: after each of its parts the others that wait have their turn, so that
small calls are not held up by large ones.

A call that finds nothing else at work may be run on the spot (`run_alone`) and answered by what `execute` returns,
which reaches the caller about 0.9 ms sooner than a response sender does.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic

from hiscore.errors import Code, RequestError
from hiscore.serving.tickets import Answered, Job, Launched, QueuedCall, Raises, Ticket, Totals, finished

log = logging.getLogger(__name__)

# After so long in the queue a caller may have gone; so many are asked before a batch is formed.
ASK_AFTER_S = 0.1
MOST_ASKED = 16


def _whole(job: Job) -> Sequence[Job]:
    return [job]


class Engine(Generic[Job]):
    """Runs tickets in batches, first come, first served, those of several parts by turns.

    launch: starts a batch, may raise; answer: sends a ticket's answer or `RequestError`; failed: told what a batch
    raised, before its calls are answered; abandoned: whether a ticket's caller has gone, asked of those
    that had to wait; cost: of a job, in the unit of `budget`, which a batch exceeds only if it is a single job.
    max_queue: calls that wait; max_cost: of all that wait or are under way; a single call may exceed it.
    split: a job's parts, each a job; join: a job's answer, from those of its parts.
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
        max_cost: float = math.inf,
        split: Callable[[Job], Sequence[Job]] = _whole,
        join: Callable[[Job, Sequence[Any]], Any] = lambda job, answers: answers[0],
    ) -> None:
        self._launch, self._answer, self._failed = launch, answer, failed
        self._abandoned, self._cost = abandoned, cost
        self._budget, self._max_queue, self._inline, self._depth = budget, max_queue, inline, depth
        self._max_cost, self._split, self._join = max_cost, split, join
        # What has been begun stands here as well, between its parts.
        self._waiting: deque[QueuedCall[Job]] = deque()
        self.totals = Totals()
        self._not_begun = 0
        self._open_cost = 0
        self._in_flight = 0
        self._closing = False
        self._changed = threading.Condition()
        self._launching = threading.Lock()  # batches are launched in the order in which they were formed
        self._launched: SimpleQueue[tuple[list[QueuedCall[Job]], Launched] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"hiscore-{work.__name__[1:]}", daemon=True)
            for work in ([self._answer_all] if inline else [self._answer_all, self._launch_all])
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tickets: Sequence[Ticket[Job]]) -> list[Ticket[Job]]:
        """Put tickets into the queue; returns those for which it has no room."""
        calls = [QueuedCall(each, self._cost(each.job), self._split(each.job)) for each in tickets]
        refused = []
        with self._changed:
            room = self._max_queue - self._not_begun
            if self._inline and self._in_flight < self._depth:
                room = max(room, 1)  # what is launched at once does not wait
            for call in calls:
                if room > 0 and (not self._open_cost or self._open_cost + call.cost <= self._max_cost):
                    room -= 1
                    self._not_begun += 1
                    self._open_cost += call.cost
                    self._waiting.append(call)
                else:
                    refused.append(call.ticket)
            self.totals.rejects["full"] += len(refused)
            self._changed.notify_all()
        if self._inline:
            self._launch_ready()
        return refused

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
        begin = time.monotonic()
        answers, failure = finished(launched, 1)
        self.totals.device_seconds += time.monotonic() - begin
        if failure is not None:
            self._face(failure)
        # Counting is left to the other thread: this one has an answer to deliver.
        self._launched.put(([], Answered(launched if failure is None else Raises(failure))))
        return answers[0]

    def _face(self, failure: Exception) -> None:
        try:
            self._failed(failure)
        except Exception:
            log.exception("a failed batch was not faced")

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
                jobs = [call.parts[part] for call, part in batch]
                self._launched.put(([call for call, _ in batch], self._try_launch(jobs)))

    def _try_launch(self, jobs: list[Job]) -> Launched:
        begin = time.monotonic()
        try:
            return self._launch(jobs)
        except Exception as error:
            return Raises(error)
        finally:
            self.totals.launch_seconds += time.monotonic() - begin

    def _next_batch(self) -> list[tuple[QueuedCall[Job], int]]:
        """Calls and the parts of them that are the next batch, if there is room and work.

        Who waits in vain is answered on the way.
        """
        batch: list[tuple[QueuedCall[Job], int]] = []
        in_vain: list[tuple[QueuedCall[Job], RequestError]] = []
        gone = self._gone()
        with self._changed:
            now, total = time.monotonic(), 0
            while self._has_room_and_work():
                call = self._waiting[0]
                part = call.launched
                cost = call.cost if len(call.parts) == 1 else self._cost(call.parts[part])
                if call.over:
                    pass  # an earlier part has failed
                elif id(call) in gone:
                    in_vain.append((call, RequestError("the call was cancelled", Code.CANCELLED)))
                    self.totals.rejects["cancelled"] += 1
                elif not part and call.ticket.deadline < now:
                    late = RequestError("Request timeout expired in the queue", Code.UNAVAILABLE)
                    in_vain.append((call, late))
                    self.totals.rejects["late"] += 1
                elif batch and total + cost > self._budget:
                    break
                else:
                    batch.append((call, part))
                    total += cost
                    call.launched += 1
                    self.totals.queue_seconds += 0.0 if part else now - call.ticket.since
                self._waiting.popleft()
                self._not_begun -= not part
                if part < call.launched < len(call.parts):
                    # Behind all others: each large call has one part in a round.
                    self._waiting.append(call)
            self._in_flight += bool(batch)
            self._changed.notify_all()
        for call, reason in in_vain:
            self._end(call, reason)
        return batch

    def _end(self, call: QueuedCall[Job], answer: Any) -> None:
        """Answer a call, once."""
        with self._changed:
            if call.over:
                return
            call.over = True
            self._open_cost -= call.cost
        self._answer(call.ticket, answer)

    def _add(self, call: QueuedCall[Job], answer: Any) -> None:
        """Take the answer of a call's next part; the call is answered with its last part, or its first error."""
        call.answers.append(answer)
        if isinstance(answer, RequestError):
            self._end(call, answer)
        elif len(call.answers) == len(call.parts):
            self._end(call, self._join(call.ticket.job, call.answers) if len(call.parts) > 1 else answer)

    def _gone(self) -> set[int]:
        """Which of the first that wait have callers no more, by `id`."""
        with self._changed:
            if not self._has_room_and_work():
                return set()
            # Asking is a round trip to the server: not for calls that are launched as they come.
            since = time.monotonic() - ASK_AFTER_S
            first = islice(self._waiting, MOST_ASKED)
            waited = [call for call in first if not call.over and call.ticket.since < since]
        try:
            return {id(call) for call in waited if self._abandoned(call.ticket)}
        except Exception:
            log.exception("whether callers have gone is not known: they are served")
            return set()

    def _answer_all(self) -> None:
        while (entry := self._launched.get()) is not None:
            batch, launched = entry
            begin = time.monotonic()
            answers, failure = finished(launched, len(batch))
            end = time.monotonic()
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()
            if failure is not None:
                self._face(failure)
            for call, answer in zip(batch, answers, strict=True):
                self._add(call, answer)
            self.totals.device_seconds += end - begin
            self.totals.answer_seconds += time.monotonic() - end
            try:
                if failure is None:
                    launched.count()
            except Exception:
                log.exception("a batch was answered but not counted")
            if self._inline:
                self._launch_ready()
