"""The thread that launches decode's work and hands its tokens on.

It is one iteration ahead: step n + 1 is launched before the tokens of step n are read, so the device never waits
for the host. A stream that turns out to have ended with step n has a row in step n + 1 for nothing. That row is
dropped, and what the stream holds is given back when it has been read.
"""

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hiscore.decoding.block_manager import check_fits
from hiscore.decoding.scheduler import Plan, Scheduler
from hiscore.decoding.sequence import DecodeCall, Output, Stage, Stream
from hiscore.decoding.stats import EngineStats, Tally
from hiscore.decoding.stop_strings import Detokenizer, StreamEnd
from hiscore.decoding.worker.interface import NOT_FINITE, Launched, Worker
from hiscore.errors import Code, RequestError, visible

__all__ = ["DecodeCall", "DecodeEngine", "EngineStats", "Output"]

log = logging.getLogger(__name__)

QUANTUM = 256

# Nothing wakes this thread when a backup lands. It asks so often, and only if it has nothing else to do.
ASK_AGAIN_S = 0.0005


@dataclass(frozen=True)
class InFlight:
    """A launch; `streams` are in it, `sampled` have one token each in its result.

    prompt_tokens: how many a prefill reads; none: it is a step.
    """

    launched: Launched
    streams: Sequence[Stream]
    sampled: Sequence[Stream]
    prompt_tokens: int = 0


class DecodeEngine:
    """Runs calls to their end, beside each other.

    detokenizer: makes one for a stream, or is None without a tokenizer. emit: gets each stream's outputs, the last
    of which has a finish reason, or an error instead; called on the engine's thread, it must not block or raise.
    failed: called with what the worker raised, before those whom it concerns are told; died: after them, if the
    engine can do no more. quantum: of steps, see `Scheduler`.
    """

    def __init__(
        self,
        worker: Worker,
        detokenizer: Callable[[], Detokenizer] | None,
        eos_ids: frozenset[int],
        max_queue: int,
        emit: Callable[[Any, Output | RequestError], None],
        failed: Callable[[Exception], None] = lambda error: None,
        died: Callable[[Exception], None] = lambda error: None,
        quantum: int = QUANTUM,
    ) -> None:
        self._worker, self._emit, self._failed, self._died = worker, emit, failed, died
        self._detokenizer, self._eos_ids, self._max_queue = detokenizer, eos_ids, max_queue
        self._geometry = worker.geometry
        self._scheduler = Scheduler(self._geometry, quantum)
        self._tally = Tally()
        self._live: dict[int, Stream] = {}  # by the id of reply_to
        self._deadlines: list[tuple[float, int]] = []  # a heap of these ids

        self._changed = threading.Condition()  # guards the six below
        self._arrived: list[Stream] = []
        self._cancelled: list[Any] = []
        self._room = max_queue + self._geometry.max_streams
        self._full = 0
        self._closing = False
        self._dead = False
        self._thread = threading.Thread(target=self._run, name="hiscore-decode", daemon=True)
        self._thread.start()

    def submit(self, call: DecodeCall, reply_to: Any) -> None:
        """Put a call into the queue; `reply_to` is what `emit` and `cancel` will know it by.

        Raises:
            RequestError: it could never fit (INVALID_ARG), or there is no room for it (UNAVAILABLE).
        """
        check_fits(call, self._geometry)
        detokenizer = self._detokenizer() if self._detokenizer else None
        stream = Stream(call, reply_to, StreamEnd(call.options, self._eos_ids, detokenizer))
        with self._changed:
            if self._dead:
                raise RequestError("decode has stopped, see the server's log", Code.INTERNAL)
            if self._closing:
                raise RequestError("the server is shutting down", Code.UNAVAILABLE)
            if self._room <= 0:
                self._full += 1
                raise RequestError(f"the queue is full: {self._max_queue} calls wait", Code.UNAVAILABLE)
            self._room -= 1
            self._arrived.append(stream)
            self._changed.notify_all()

    def cancel(self, reply_to: Any) -> None:
        """End a stream, from any thread. Its last output says `cancelled`, unless it has ended meanwhile."""
        with self._changed:
            self._cancelled.append(reply_to)
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more, run what is there to its end, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def stats(self) -> EngineStats:
        """What it has done and holds, from any thread."""
        return replace(self._tally.snapshot(self._scheduler, self._geometry), full=self._full)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.critical("decode stops: its thread failed", exc_info=error)
            with self._changed:
                self._dead = True
                arrived = self._arrived
            self._failed(error)
            for stream in [*self._live.values(), *arrived]:
                self._emit(
                    stream.reply_to, RequestError("internal error, see the server's log", Code.INTERNAL)
                )
            self._died(error)

    def _serve(self) -> None:
        before: list[InFlight] = []
        worked = True
        while self._take_requests(wait=not worked):
            plan = self._scheduler.plan(self._worker.drained)
            launched = self._launch(plan)
            self._make_room()
            for entry in before:
                self._read(entry)
            worked = bool(before or launched)
            before = launched

    def _take_requests(self, wait: bool) -> bool:
        """Take in what other threads have asked for; false if there is nothing left to do, ever."""
        idle = self._scheduler.idle
        with self._changed:
            if idle:
                self._changed.wait_for(lambda: self._arrived or self._cancelled or self._closing)
            elif wait:
                self._changed.wait_for(lambda: self._arrived or self._cancelled, ASK_AGAIN_S)
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, []
            if idle and self._closing and not arrived:
                return False
        for stream in arrived:
            self._live[id(stream.reply_to)] = stream
            for at in (stream.call.deadline, stream.call.start_by):
                if at < math.inf:
                    heapq.heappush(self._deadlines, (at, id(stream.reply_to)))
            self._scheduler.add(stream)
        for reply_to in cancelled:
            if (ending := self._live.get(id(reply_to))) is not None:
                if ending.stage is Stage.WAITING:
                    self._tally.turn_away("cancelled")
                self._end(ending, Output([], ending.end.cancel(), "cancelled"))
        self._expire(time.monotonic())
        return True

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            stream = self._live.get(heapq.heappop(self._deadlines)[1])
            if stream is None:
                continue
            # Another stream may have the id of one that is gone.
            waits, call = stream.stage is Stage.WAITING, stream.call
            if call.deadline <= now or (waits and call.start_by <= now):
                after = f"after {stream.received} of at most {call.options.max_tokens} tokens"
                at = "in the queue" if waits else after
                if waits:
                    self._tally.turn_away("late")
                self._end(stream, RequestError(f"Request timeout expired {at}", Code.UNAVAILABLE))

    def _make_room(self) -> None:
        """Calls that can start at once do not count as waiting."""
        waiting = self._scheduler.count(Stage.WAITING)
        free = 0 if waiting else self._scheduler.pools.slots.free
        with self._changed:
            self._room = self._max_queue + free - waiting - len(self._arrived)

    def _launch(self, plan: Plan) -> list[InFlight]:
        worker = self._worker
        launched: list[InFlight] = []
        for release in plan.releases:
            worker.release(release.slot, release.host, release.device)
        if plan.rows is not None:
            with self._concerning(plan.running, launching=True):
                launched.append(InFlight(worker.step(plan.rows), plan.running, plan.running))
        for stream in plan.restored:
            with self._concerning([stream]):
                worker.restore(stream.slot, stream.length, stream.host, stream.staging)
        if plan.sampling is not None:
            with self._concerning(plan.prefilling, launching=True):
                prefill = worker.prefill(plan.chunks, plan.sampling)
                prompt_tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
                launched.append(InFlight(prefill, plan.prefilling, plan.filled, prompt_tokens))
        for stream in plan.admitted:
            if not stream.ended:
                with self._concerning([stream]):
                    worker.admit(stream.admission())
        return launched

    def _read(self, entry: InFlight) -> None:
        for stream in entry.streams:
            stream.in_flight -= 1
        with self._concerning(entry.streams):
            result = entry.launched.result()
            sent = 0
            for stream, token in zip(entry.sampled, result.tokens.tolist(), strict=True):
                if not stream.ended:
                    with self._concerning([stream]):
                        self._receive(stream, token)
                        sent += 1
            self._tally.add(result, self._geometry, sent, entry.prompt_tokens)

    def _receive(self, stream: Stream, token: int) -> None:
        if token == NOT_FINITE:
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        text, finish_reason = stream.end.take(token)
        stream.received += 1
        stream.newest = token
        output = Output([token], text, finish_reason)
        if finish_reason:
            self._end(stream, output)
        else:
            self._emit(stream.reply_to, output)

    def _end(self, stream: Stream, answer: Output | RequestError) -> None:
        del self._live[id(stream.reply_to)]
        self._scheduler.end(stream)
        self._emit(stream.reply_to, answer)

    @contextmanager
    def _concerning(self, streams: Sequence[Stream], launching: bool = False) -> Iterator[None]:
        """What is raised inside ends these streams and no other."""
        try:
            yield
        except Exception as error:
            answer = visible(error)
            if error is not answer:
                self._failed(error)
            for stream in streams:
                stream.in_flight -= launching
                if not stream.ended:
                    self._end(stream, answer)
