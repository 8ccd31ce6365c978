"""The thread that launches decode's work and hands its tokens on.

It is one iteration ahead: step n + 1 is launched before the tokens of step n are read, so the device never waits
for the host. A sequence that turns out to have ended with step n has a row in step n + 1 for nothing. That row is
dropped, and what the sequence holds is given back when it has been read.
"""

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hiscore.decoding.block_manager import check_fits
from hiscore.decoding.scheduler import Plan, Scheduler
from hiscore.decoding.sequence import DecodeCall, Output, Sequence, Stage
from hiscore.decoding.stats import EngineStats, Tally
from hiscore.decoding.stop_strings import Detokenizer, StreamEnd
from hiscore.decoding.worker.interface import NOT_FINITE, PendingForward, Worker
from hiscore.errors import Code, RequestError, to_request_error

__all__ = ["DecodeCall", "DecodeEngine", "EngineStats", "Output"]

log = logging.getLogger(__name__)

QUANTUM = 256

# Nothing wakes this thread when a backup lands. It asks so often, and only if it has nothing else to do.
ASK_AGAIN_S = 0.0005


@dataclass(frozen=True)
class InFlight:
    """A launch; `sequences` are in it, `sampled` have one token each in its result.

    prompt_tokens: how many a prefill reads; none: it is a step.
    """

    launched: PendingForward
    sequences: list[Sequence]
    sampled: list[Sequence]
    prompt_tokens: int = 0


class DecodeEngine:
    """Runs calls to their end, beside each other.

    detokenizer: makes one for a sequence, or is None without a tokenizer. emit: gets each sequence's outputs,
    the last of which has a finish reason, or an error instead; called on the engine's thread, it must not
    block or raise. failed: called with what the worker raised, before those whom it concerns are told; died:
    after them, if the engine can do no more. quantum: of steps, see `Scheduler`.
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
        self._cache_config = worker.cache_config
        self._scheduler = Scheduler(self._cache_config, quantum)
        self._tally = Tally()
        self._live: dict[int, Sequence] = {}  # by the id of reply_to
        self._deadlines: list[tuple[float, int]] = []  # a heap of these ids

        self._changed = threading.Condition()  # guards the six below
        self._arrived: list[Sequence] = []
        self._cancelled: list[Any] = []
        self._room = max_queue + self._cache_config.max_sequences
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
        check_fits(call, self._cache_config)
        detokenizer = self._detokenizer() if self._detokenizer else None
        sequence = Sequence(call, reply_to, StreamEnd(call.options, self._eos_ids, detokenizer))
        with self._changed:
            if self._dead:
                raise RequestError("decode has stopped, see the server's log", Code.INTERNAL)
            if self._closing:
                raise RequestError("the server is shutting down", Code.UNAVAILABLE)
            if self._room <= 0:
                self._full += 1
                raise RequestError(f"the queue is full: {self._max_queue} calls wait", Code.UNAVAILABLE)
            self._room -= 1
            self._arrived.append(sequence)
            self._changed.notify_all()

    def cancel(self, reply_to: Any) -> None:
        """End a sequence, from any thread. Its last output says `cancelled`, unless it has ended meanwhile."""
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
        return replace(self._tally.snapshot(self._scheduler, self._cache_config), full=self._full)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.critical("decode stops: its thread failed", exc_info=error)
            with self._changed:
                self._dead = True
                arrived = self._arrived
            self._failed(error)
            for sequence in [*self._live.values(), *arrived]:
                self._emit(
                    sequence.reply_to, RequestError("internal error, see the server's log", Code.INTERNAL)
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
        for sequence in arrived:
            self._live[id(sequence.reply_to)] = sequence
            for at in (sequence.call.deadline, sequence.call.start_by):
                if at < math.inf:
                    heapq.heappush(self._deadlines, (at, id(sequence.reply_to)))
            self._scheduler.add(sequence)
        for reply_to in cancelled:
            if (ending := self._live.get(id(reply_to))) is not None:
                if ending.stage is Stage.WAITING:
                    self._tally.turn_away("cancelled")
                self._end(ending, Output([], ending.end.cancel(), "cancelled"))
        self._expire(time.monotonic())
        return True

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = self._live.get(heapq.heappop(self._deadlines)[1])
            if sequence is None:
                continue
            # Another sequence may have the id of one that is gone.
            waits, call = sequence.stage is Stage.WAITING, sequence.call
            if call.deadline <= now or (waits and call.start_by <= now):
                after = f"after {sequence.received} of at most {call.options.max_tokens} tokens"
                at = "in the queue" if waits else after
                if waits:
                    self._tally.turn_away("late")
                self._end(sequence, RequestError(f"Request timeout expired {at}", Code.UNAVAILABLE))

    def _make_room(self) -> None:
        """Calls that can start at once do not count as waiting."""
        waiting = self._scheduler.count(Stage.WAITING)
        free = 0 if waiting else self._scheduler.pools.seq_indices.free
        with self._changed:
            self._room = self._max_queue + free - waiting - len(self._arrived)

    def _launch(self, plan: Plan) -> list[InFlight]:
        worker = self._worker
        launched: list[InFlight] = []
        for release in plan.releases:
            worker.release(release.seq_index, release.host, release.device)
        if plan.rows is not None:
            with self._concerning(plan.running, launching=True):
                launched.append(InFlight(worker.step(plan.rows), plan.running, plan.running))
        for sequence in plan.restored:
            with self._concerning([sequence]):
                worker.restore(sequence.seq_index, sequence.length, sequence.host, sequence.staging)
        if plan.sampling is not None:
            with self._concerning(plan.prefilling, launching=True):
                prefill = worker.prefill(plan.chunks, plan.sampling)
                prompt_tokens = sum(len(chunk.tokens) for chunk in plan.chunks)
                launched.append(InFlight(prefill, plan.prefilling, plan.filled, prompt_tokens))
        for sequence in plan.admitted:
            if not sequence.ended:
                with self._concerning([sequence]):
                    worker.admit(sequence.admission())
        return launched

    def _read(self, entry: InFlight) -> None:
        for sequence in entry.sequences:
            sequence.in_flight -= 1
        with self._concerning(entry.sequences):
            result = entry.launched.result()
            sent = 0
            for sequence, token in zip(entry.sampled, result.tokens.tolist(), strict=True):
                if not sequence.ended:
                    with self._concerning([sequence]):
                        self._receive(sequence, token)
                        sent += 1
            self._tally.add(result, self._cache_config, sent, entry.prompt_tokens)

    def _receive(self, sequence: Sequence, token: int) -> None:
        if token == NOT_FINITE:
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        text, finish_reason = sequence.end.take(token)
        sequence.received += 1
        sequence.newest = token
        output = Output([token], text, finish_reason)
        if finish_reason:
            self._end(sequence, output)
        else:
            self._emit(sequence.reply_to, output)

    def _end(self, sequence: Sequence, answer: Output | RequestError) -> None:
        del self._live[id(sequence.reply_to)]
        self._scheduler.end(sequence)
        self._emit(sequence.reply_to, answer)

    @contextmanager
    def _concerning(self, sequences: list[Sequence], launching: bool = False) -> Iterator[None]:
        """What is raised inside ends these sequences and no other."""
        try:
            yield
        except Exception as error:
            answer = to_request_error(error)
            if error is not answer:
                self._failed(error)
            for sequence in sequences:
                sequence.in_flight -= launching
                if not sequence.ended:
                    self._end(sequence, answer)
