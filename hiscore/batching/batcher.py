"""A model's own queue, and the threads that form batches from it and answer them.

Triton's dynamic batcher cannot serve as the queue: with any limit or timeout it stops prefetching, and then a
request that arrives while the model is busy may sleep for half a second. So `execute` only validates and queues
requests, and a batch is formed at the last moment, by cost, from all that wait.

While the device computes one batch, the next is launched behind it: where small requests are to be expected, only
shortly before the first ends (`launch_pace`). A launch that computes has its own thread. One that only queues work
on a device is made by the first thread that sees that it is time, as switching threads would cost 0.3 ms: the
caller of `submit`, the one that has just seen a batch end, or an alarm.

A large batch may be launched in slices, with small batches between them; then launches and ends are a slice's.

A request that finds the model idle may run on the calling thread (`run_alone`), to be answered by what `execute`
returns: that reaches the caller about 0.9 ms sooner than a response sender does.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic

from hiscore.batching.batched_model import (
    BatchedModel,
    BatchLimits,
    Job,
    LaunchedBatch,
    LaunchedSlice,
    QueuedRequest,
)
from hiscore.batching.launch_pace import Alarm, LaunchPace, OneAtATime
from hiscore.batching.totals import Totals
from hiscore.batching.waiting import WaitingRequests
from hiscore.errors import Code, RequestError, to_request_error
from hiscore.server.load_board import LoadBoard

log = logging.getLogger(__name__)

Launched = LaunchedBatch | LaunchedSlice | Exception


@dataclass
class _FormedBatch(Generic[Job]):
    """A batch of which at least a slice has yet to be launched, at this cost."""

    requests: list[QueuedRequest[Job]]
    cost: float
    slices: Iterator[LaunchedSlice | LaunchedBatch]


class Batcher(Generic[Job]):
    """Runs requests in batches; `board` shows the loads of the model's instances, in the unit of costs.

    Example:
        With `doubler`, a model whose jobs are numbers, and `answers`, a `Caller` that keeps what is sent:

        >>> batcher = Batcher(doubler, BatchLimits(max_batch_cost=8, max_queue=100))
        >>> batcher.submit([QueuedRequest(21, answers, deadline=math.inf)])
        >>> batcher.close()
        >>> answers.sent
        [42]
    """

    def __init__(self, model: BatchedModel[Job], limits: BatchLimits, board: LoadBoard | None = None) -> None:
        self._model, self._limits = model, limits
        self.totals = Totals()
        self.board = board or LoadBoard()
        self._waiting = WaitingRequests(model, limits, self.totals, self.board)
        self._in_flight = 0
        self._opened: _FormedBatch[Job] | None = None  # what is left of a batch that is launched in slices
        self._pace = LaunchPace()
        self._closing = False
        self._changed = threading.Condition()  # guards all of the above
        # One thread at a time launches, in the order in which batches were formed.
        self._launch_ready = OneAtATime(self._launch_due)
        self._launched: SimpleQueue[tuple[list[QueuedRequest[Job]], Launched] | None] = SimpleQueue()
        loops = [self._answer_all] if self._model.async_launch else [self._answer_all, self._launch_all]
        self._threads = [
            threading.Thread(target=loop, name=f"hiscore-{loop.__name__[1:]}", daemon=True) for loop in loops
        ]
        self._alarm = Alarm(self._launch_ready, "hiscore-launch_due") if model.async_launch else None
        for thread in self._threads:
            thread.start()

    def submit(self, requests: Sequence[QueuedRequest[Job]]) -> None:
        """Queue requests; those for which there is no room are answered with UNAVAILABLE."""
        plan = self._model.plan()
        sizes = [plan.price(request.job, 0) for request in requests]
        for request in requests:
            request.cost = self._model.cost(request.job)
        refused = []
        with self._changed:
            closing = self._closing
            at_once = self._model.async_launch and self._in_flight < self._limits.max_in_flight
            for request, size in zip(requests, sizes, strict=True):
                if closing or not self._waiting.admit(request, size, at_once, self._in_flight > 0):
                    refused.append(request)
                else:
                    at_once = False
            if not closing:
                self.totals.rejects["full"] += len(refused)
            self._changed.notify_all()
        if self._model.async_launch:
            self._launch_ready()
        reason = "the server is shutting down" if closing else "the server is full, try again later"
        for request in refused:
            request.reply_to.send(RequestError(reason, Code.UNAVAILABLE))

    def run_alone(self, job: Job) -> Any | None:
        """Run a job on the calling thread, if the model is idle; return its answer or `RequestError`, else None.

        Jobs of more than `BatchLimits.max_alone_cost` are not run: meanwhile no other request of the calling
        thread could even be refused. Where launches compute, only the thread that calls this may submit.
        """
        begin = time.monotonic()
        price = self._model.plan().price(job, 0)
        if price > self._limits.max_alone_cost or not self._limits.max_alone_cost:
            return None
        # What another thread submits meanwhile is launched behind it, not between two of its slices.
        if not self._launch_ready.lock.acquire(blocking=False):
            return None
        try:
            with self._changed:
                if self._has_work() or self._in_flight or self._closing:
                    return None
                self._in_flight = 1
                self._waiting.alone = self._model.cost(job)
                self._waiting.publish_load()
                self.totals.queue_wait.observe(0.0)
            batch = self._try_launch(_FormedBatch([], price, self._model.launch([job])), whole=True)
        finally:
            self._launch_ready.lock.release()
        if self._has_work() and self._model.async_launch:
            self._launch_ready()
        answers, completed = self._await(batch, 1)
        if completed:
            _count(batch)
        with self._changed:
            self._in_flight -= 1
            self._waiting.alone = 0
            self._waiting.publish_load()
            if not isinstance(answers[0], RequestError):
                self.totals.call.observe(time.monotonic() - begin)
            # To wake another thread would hold up the answer.
            if is_awaited := self._has_work() or self._closing:
                self._changed.notify_all()
        if is_awaited and self._model.async_launch:
            self._launch_ready()
        return answers[0]

    def close(self) -> None:
        """Refuse new requests, run and answer those that wait, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_work() and not self._in_flight)
        self._launched.put(None)
        for thread in self._threads:
            thread.join()
        if self._alarm:
            self._alarm.close()

    def _has_work(self) -> bool:
        return len(self._waiting) > 0 or self._opened is not None

    def _launch_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._can_launch() or (self._closing and not self._has_work()))
                if not self._has_work():
                    return
            self._launch_ready()

    def _can_launch(self) -> bool:
        if not self._has_work() or self._in_flight >= self._limits.max_in_flight:
            return False
        alarm = self._alarm if self._in_flight and self._waiting.expects_small() else None
        if alarm and (due := self._pace.due()) > time.monotonic():
            alarm.set(due)
            return False
        return True

    def _launch_due(self) -> None:
        while batch := self._next_launch():
            self._launched.put((batch.requests, self._try_launch(batch)))

    def _try_launch(self, batch: _FormedBatch[Job], whole: bool = False) -> Launched:
        begin = time.monotonic()
        try:
            launched = next(batch.slices)
            while whole and isinstance(launched, LaunchedSlice):
                launched = next(batch.slices)
        except Exception as error:
            return error
        finally:
            self.totals.launch_seconds += time.monotonic() - begin
        left = launched.left if isinstance(launched, LaunchedSlice) else 0
        cost = batch.cost / (left + 1)
        batch.cost -= cost
        with self._changed:
            if left:
                self._opened = batch
            self._pace.launched(cost, begin, time.monotonic())
        return launched

    def _next_launch(self) -> _FormedBatch[Job] | None:
        """Take the next batch, or one with a slice left; answer the requests that are late or cancelled."""
        cancelled = self._cancelled()
        with self._changed:
            if not self._can_launch():
                return None
            batch, between = self._opened, self._opened is not None
            parts, cost, dropped = self._waiting.next_batch(cancelled, between)
            if parts:
                requests, jobs = zip(*parts, strict=True)
                batch = _FormedBatch(list(requests), cost, self._model.launch(list(jobs)))
            else:
                self._opened = None
            self._in_flight += batch is not None
            self._changed.notify_all()
        for request, reason in dropped:
            self._reply(request, reason)
        return batch

    def _cancelled(self) -> list[QueuedRequest[Job]]:
        """Find the requests among the oldest whose callers have gone; between slices nobody is asked."""
        with self._changed:
            polled = self._waiting.worth_polling() if self._can_launch() and not self._opened else []
        try:
            return [request for request in polled if request.reply_to.is_cancelled()]
        except Exception:
            log.exception("cannot tell which requests were cancelled: they are served")
            return []

    def _answer_all(self) -> None:
        while (entry := self._launched.get()) is not None:
            requests, batch = entry
            answers, completed = self._await(batch, len(requests))
            begin = time.monotonic()
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()
            for request, answer in zip(requests, answers, strict=False):  # a slice answers nobody
                try:
                    self._add_answer(request, answer)
                except Exception:
                    # This thread answers every request: it must live on.
                    log.exception("a request could not be answered")
            self.totals.answer_seconds += time.monotonic() - begin
            if completed:
                _count(batch)
            if self._model.async_launch:
                self._launch_ready()

    def _await(self, batch: Launched, jobs: int) -> tuple[Sequence[Any], bool]:
        """Wait for a batch. Return one answer per job, and whether it completed: else all are the same error."""
        begin, completed = time.monotonic(), False
        answers: Sequence[Any] = []
        try:
            if isinstance(batch, Exception):
                raise batch
            if isinstance(batch, LaunchedSlice):
                batch.wait()
            elif len(answers := batch.finish()) != jobs:
                raise ValueError(f"a batch of {jobs} jobs has {len(answers)} answers")
            completed = True
        except Exception as error:
            answers = [to_request_error(error)] * jobs
            try:
                self._model.on_failure(error)
            except Exception:
                log.exception("on_failure raised")
        with self._changed:
            self.totals.device_seconds += time.monotonic() - begin
            if not isinstance(batch, Exception):
                (self._pace.finished if completed else self._pace.forget)(time.monotonic())
        return answers, completed

    def _add_answer(self, request: QueuedRequest[Job], answer: Any) -> None:
        """Keep the answer of a request's next part; its last part or its first error answers the request."""
        with self._changed:
            if request.answered:
                return
            request.answers.append(answer)
            is_last = request.done is None and len(request.answers) == request.launched
        if isinstance(answer, RequestError) or (request.launched == 1 and is_last):
            self._reply(request, answer)
        elif is_last:
            self._reply(request, self._join(request))

    def _reply(self, request: QueuedRequest[Job], answer: Any) -> None:
        with self._changed:
            if request.answered:
                return
            request.answered = True
            self._waiting.answered(request)
            if not isinstance(answer, RequestError):
                self.totals.call.observe(time.monotonic() - request.since)
        request.reply_to.send(answer)

    def _join(self, request: QueuedRequest[Job]) -> Any:
        try:
            return self._model.join(request.job, request.answers)
        except Exception as error:
            return to_request_error(error)


def _count(batch: Launched) -> None:
    """Count a batch that has finished. One that cannot be counted harms nobody."""
    if isinstance(batch, LaunchedSlice | Exception):
        return
    try:
        batch.count()
    except Exception:
        log.exception("a batch was not counted")
