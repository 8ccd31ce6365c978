"""The decode engine: one thread that schedules, launches and emits tokens.

Overlap scheduling: the results of iteration n are read while iteration n + 1 runs, so the device never waits for
the host. A sequence that turns out to have ended in iteration n still has a row in n + 1; that token is dropped,
and the sequence is freed once it has been read.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hiscore.decoding.engine.inbox import Deadlines, Inbox
from hiscore.decoding.engine.masks import MaskThreads
from hiscore.decoding.engine.stats import EngineStats, Tally
from hiscore.decoding.engine.times import Times
from hiscore.decoding.interface.logprobs import TokenLogprobs
from hiscore.decoding.interface.worker import NOT_FINITE, PendingForward, Worker
from hiscore.decoding.pools.page_needs import check_fits, fill_max_tokens
from hiscore.decoding.requests.stop_strings import Detokenizer, StopChecker
from hiscore.decoding.scheduling.batch import make_admission
from hiscore.decoding.scheduling.preemption import PreemptionPolicy
from hiscore.decoding.scheduling.schedule import Schedule
from hiscore.decoding.scheduling.scheduler import Scheduler
from hiscore.decoding.sequence import DecodeCall, Output, Sequence, Status
from hiscore.errors import Code, RequestError, to_request_error
from hiscore.server.load_board import LoadBoard

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InFlight:
    """A step, without prompt tokens, or a prefill in flight; its result has a token for each of `sampled`."""

    launched: PendingForward
    sequences: list[Sequence]
    sampled: list[Sequence]
    prompt_tokens: int = 0

    @property
    def failed(self) -> list[tuple[Sequence, Exception]]:
        """Sequences that failed at the launch: they must end before another launch has a row for them."""
        failures = self.launched.failures
        return [
            (each, failures[each.held.seq_index])
            for each in self.sequences
            if each.held.seq_index in failures
        ]


class DecodeEngine:
    """Runs calls concurrently.

    Args:
        detokenizer: Makes a prompt's detokenizer, which skips special tokens or not; None without a tokenizer.
        emit: Gets the outputs of each sequence, the last with a finish reason, or an error instead. Called on the
            engine's thread: it must not block or raise.
        on_failure: Called with what the worker raised, before the sequences concerned are told.
        on_death: Called after them, if the engine cannot go on.
        overlap: Launch an iteration before the one before is read. On a CPU, where a launch computes, tokens would
            only be late by it, and a step more be computed than a sequence needs.

    Example:
        With `worker`, any device side, and `outputs`, a list:

        >>> engine = DecodeEngine(worker, None, frozenset(), 8, emit=lambda caller, output: outputs.append(output))
        >>> call = DecodeCall(np.array([1, 2, 3], np.int32), SamplingParams(max_tokens=2), deadline=math.inf)
        >>> engine.submit(call, reply_to="a caller")
        >>> engine.close()
        >>> [(len(output.token_ids), output.finish_reason) for output in outputs]
        [(1, ''), (1, 'length')]
    """

    def __init__(
        self,
        worker: Worker,
        detokenizer: Callable[[bool, list[int]], Detokenizer] | None,
        eos_ids: frozenset[int],
        max_queue: int,
        emit: Callable[[Any, Output | RequestError], None],
        on_failure: Callable[[Exception], None] = lambda error: None,
        on_death: Callable[[Exception], None] = lambda error: None,
        preemption_policy: PreemptionPolicy = PreemptionPolicy(),  # noqa: B008 (frozen)
        board: LoadBoard | None = None,
        overlap: bool = True,
    ) -> None:
        self._worker, self._emit, self._overlap = worker, emit, overlap
        self._on_failure, self._on_death = on_failure, on_death
        self._detokenizer, self._eos_ids = detokenizer, eos_ids
        self._cache_config = worker.cache_config
        self._inbox = Inbox(max_queue, self._cache_config.max_sequences, board)
        self._scheduler = Scheduler(self._cache_config, preemption_policy)
        self._masks = MaskThreads(self._inbox.wake)
        self._tally = Tally()
        self.times = Times()
        self._live: dict[int, Sequence] = {}  # by the id of reply_to
        self._deadlines = Deadlines()
        self._thread = threading.Thread(target=self._run, name="hiscore-decode", daemon=True)
        self._thread.start()

    def submit(self, call: DecodeCall, reply_to: Any) -> None:
        """Queue a call, from any thread; `emit` and `cancel` know its sequence by `reply_to`.

        Raises:
            RequestError: The call could never fit (INVALID_ARG), or there is no room for it now (UNAVAILABLE).
        """
        call = fill_max_tokens(call, self._cache_config)
        check_fits(call, self._cache_config)
        skip = call.params.skip_special_tokens
        detokenizer = self._detokenizer(skip, call.prompt.tolist()) if self._detokenizer else None
        sequence = Sequence(call, reply_to, StopChecker(call.params, self._eos_ids, detokenizer))
        self._scheduler.prefix_cache.hash_prompt(sequence)
        self._inbox.put(sequence)

    def cancel(self, reply_to: Any) -> None:
        """End a sequence, from any thread. Its last output says "cancelled", unless it has ended meanwhile."""
        self._inbox.cancel(reply_to)

    def close(self) -> None:
        """Accept no more calls, run those accepted to their end, and end the thread."""
        self._inbox.close()
        self._thread.join()
        self._masks.close()

    def stats(self) -> EngineStats:
        """Return the statistics so far, from any thread."""
        stats = self._tally.snapshot(self._scheduler, self._cache_config)
        return replace(stats, full=self._inbox.num_refused)

    def _run(self) -> None:
        try:
            self._overlap_loop()
        except Exception as error:
            log.critical("decode stops: its thread failed", exc_info=error)
            arrived = self._inbox.fail()
            self._on_failure(error)
            answer = RequestError("internal error, see the server's log", Code.INTERNAL)
            for sequence in [*self._live.values(), *arrived]:
                self._emit_last(sequence, answer)
            self._on_death(error)

    def _overlap_loop(self) -> None:
        in_flight: list[InFlight] = []
        busy = True
        while self._receive(poll=not busy):
            schedule = self._scheduler.schedule(self._worker.drained)
            launched = self._launch(schedule)
            self.times.leave_queue(schedule.prefilling)
            if not self._overlap:  # what is computed is read first, then what first tokens need not wait for
                for entry in launched:
                    self._collect(entry)
            self._admit(schedule)
            self._update_room()
            # The device is busy with this iteration: time for what nobody waits for, and to read the one before.
            self._scheduler.publish_prompts()
            for entry in in_flight:
                self._collect(entry)
            busy = bool(in_flight or launched)
            in_flight = launched if self._overlap else []

    def _launch(self, schedule: Schedule) -> list[InFlight]:
        """Launch an iteration, the step first, which no prefill delays. A failure ends its own sequences only."""
        launched: list[InFlight] = []
        for release in schedule.releases:
            self._worker.release(release.seq_index, release.host, release.device)
        if schedule.decode_batch is not None:
            with self._fail_only(schedule.stepped, launching=True):
                if schedule.growths:
                    self._worker.grow(schedule.growths)
                step = self._worker.step(schedule.decode_batch)
                launched.append(InFlight(step, schedule.stepped, schedule.stepped))
                self._fail_each(launched[-1].failed)
        for sequence in schedule.resumed:
            with self._fail_only([sequence]):
                held = sequence.held
                self._worker.restore(
                    held.seq_index, sequence.length, held.host_pages, held.staging_pages, held.restored_pages
                )
        for sequence, prefix in schedule.fetched:
            with self._fail_only([sequence]):
                self._worker.fetch(prefix)
        if schedule.sampling is not None:
            with self._fail_only(schedule.prefilling, launching=True):
                prefill = self._worker.prefill(schedule.chunks, schedule.sampling)
                prompt_tokens = sum(len(chunk.tokens) for chunk in schedule.chunks)
                launched.append(InFlight(prefill, schedule.prefilling, schedule.completed, prompt_tokens))
                self._fail_each(launched[-1].failed)
        return launched

    def _admit(self, schedule: Schedule) -> None:
        for sequence in schedule.admitted:
            if not sequence.has_failed:
                with self._fail_only([sequence]):
                    self._worker.admit(make_admission(sequence))

    def _receive(self, poll: bool) -> bool:
        """Take in new calls, cancellations and timeouts; return False once nothing is left to do, ever."""
        if (taken := self._inbox.take(self._scheduler.idle, poll)) is None:
            return False
        arrived, cancelled = taken
        for sequence in arrived:
            self._live[id(sequence.reply_to)] = sequence
            self._deadlines.add(sequence)
            self._scheduler.add(sequence)
        for reply_to in cancelled:
            if (ending := self._live.get(id(reply_to))) is not None:
                self._cancel(ending)
        self._fail_each(self._masks.collect())
        for sequence, late in self._deadlines.expired(time.monotonic(), self._live):
            if sequence.status is Status.WAITING:
                self._tally.count_rejection("late")
            self._end(sequence, late)
        return True

    def _cancel(self, sequence: Sequence) -> None:
        if sequence.status is Status.WAITING:
            self._tally.count_rejection("cancelled")
        self._end(sequence, Output([], self._text_left(sequence), "cancelled", sequence.usage))

    def _update_room(self) -> None:
        queues, blocks = self._scheduler.queues, self._scheduler.blocks
        waiting = len(queues.waiting)
        # Calls that can start at once do not count as waiting.
        startable = 0 if waiting else blocks.seq_indices.num_free
        preempted = len(queues.preempted)
        load = len(queues.active) + preempted + blocks.host.num_used / blocks.host.size
        self._inbox.update_room(waiting, startable, load, preempted)

    def _collect(self, entry: InFlight) -> None:
        for sequence in entry.sequences:
            sequence.in_flight -= 1
        with self._fail_only(entry.sequences):
            result = entry.launched.result()
            sent = 0
            for row, (sequence, token) in enumerate(zip(entry.sampled, result.tokens.tolist(), strict=True)):
                sequence.read += 1
                if sequence.ended:
                    sequence.has_failed |= token == NOT_FINITE  # as in `_fail_only`
                    continue
                # What is computed again was sent before; but if it is not finite now, nor is what follows.
                if token == NOT_FINITE or sequence.read > sequence.num_output_tokens:
                    with self._fail_only([sequence]):
                        self._append(sequence, token, result.logprobs.get(row))
                        sent += 1
            self._tally.add(result, self._cache_config, sent, entry.prompt_tokens)

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        if token == NOT_FINITE:
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        checker = sequence.stop_checker
        text, finish_reason = checker.append(token)
        self.times.token(sequence)
        sequence.output_ids.append(token)
        reported = () if logprobs is None else (logprobs,)
        output = Output([token], text, finish_reason, sequence.usage, checker.matched_stop, reported)
        if finish_reason:
            self._end(sequence, output)
        else:
            self._masks.advance(sequence, token)
            self._emit(sequence.reply_to, output)

    def _end(self, sequence: Sequence, last: Output | RequestError) -> None:
        del self._live[id(sequence.reply_to)]
        sequence.has_failed = isinstance(last, RequestError) and last.code is Code.INTERNAL
        self._scheduler.end(sequence)
        # Whoever is told so may call again at once.
        self._update_room()
        self.times.end(sequence, last)
        self._emit_last(sequence, last)

    def _emit_last(self, sequence: Sequence, last: Output | RequestError) -> None:
        """Emit the last output; before an error, the text that was held back."""
        if isinstance(last, RequestError) and (text := self._text_left(sequence)):
            self._emit(sequence.reply_to, Output([], text, "", sequence.usage))
        self._emit(sequence.reply_to, last)

    def _text_left(self, sequence: Sequence) -> str:
        """Return the text still held back, or none if it cannot be made: that must not end other sequences."""
        try:
            return sequence.stop_checker.flush()
        except Exception as error:
            self._on_failure(error)
            log.exception("the end of a text is lost")
            return ""

    @contextmanager
    def _fail_only(self, sequences: list[Sequence], launching: bool = False) -> Iterator[None]:
        """Let an exception inside end these sequences only; `launching` takes them out of those in flight."""
        try:
            yield
        except Exception as error:
            answer = to_request_error(error)
            if error is not answer:
                self._on_failure(error)
            for sequence in sequences:
                sequence.in_flight -= launching
                if sequence.ended:
                    sequence.has_failed = True  # what it still had in flight is of no use to others
                else:
                    self._end(sequence, answer)
                    sequence.has_failed |= launching

    def _fail_each(self, failed: list[tuple[Sequence, Exception]]) -> None:
        for sequence, error in failed:
            with self._fail_only([sequence]):
                raise error
