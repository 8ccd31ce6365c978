"""Decides what is launched next, without a thread, a clock or a device.

Sequences start in order of arrival. One that does not fit yet may be overtaken by smaller ones a limited number of
times; after that, freed memory is kept for it. Every running sequence is in every step; an iteration also has at
most one prefill forward. The oldest prompt is guaranteed half of that forward, so that short prompts cannot starve
it; the rest goes to the shortest first, so that a long prompt does not delay them either.

A sequence that has run for a quantum of steps is preempted for the one at the front of the queue, if that has
waited as long and would fit in its place. It goes to the back of the queue and keeps its pages on the host.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from hiscore.decoding.batch import make_decode_batch, make_sampling_batch
from hiscore.decoding.block_manager import BlockManager, PagesNeeded, Release, pages_needed
from hiscore.decoding.sequence import Sequence, Status
from hiscore.decoding.worker.interface import (
    NO_PAGES,
    STAGING_PAGE_SIZE,
    CacheConfig,
    DecodeBatch,
    PrefillChunk,
)
from hiscore.decoding.worker.sampling_batch import SamplingBatch

MAX_OVERTAKEN = 16
# How many from the front of each queue are considered in an iteration.
LOOK_AHEAD = 16

Fifo = dict[Sequence, None]  # a set in order of insertion


@dataclass
class Schedule:
    """What to launch, in this order.

    Attributes:
        releases: Indices and pages that no longer belong to any sequence.
        stepped: Sequences of the decode step.
        decode_batch: One row for each of `stepped`; None if there are none.
        resumed: Preempted sequences to copy back into staging.
        prefilling: Sequences of the prefill forward.
        chunks: One for each of `prefilling`.
        completed: Those of `prefilling` whose prompt ends in this forward.
        sampling: One row for each of `completed`; None if nothing is prefilled.
        admitted: Sequences that start to decode.
    """

    releases: list[Release] = field(default_factory=list)
    stepped: list[Sequence] = field(default_factory=list)
    decode_batch: DecodeBatch | None = None
    resumed: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    completed: list[Sequence] = field(default_factory=list)
    sampling: SamplingBatch | None = None
    admitted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Sequences by their status, and the pools that they share.

    Args:
        cache_config: Sizes of the pools and of a prefill forward.
        quantum: Steps that a sequence runs before it may be preempted, and waits before it preempts; 0: never.
    """

    def __init__(self, cache_config: CacheConfig, quantum: int) -> None:
        self.blocks = BlockManager(cache_config)
        self.queues: dict[Status, Fifo] = {status: {} for status in Status if status is not Status.FINISHED}
        self.waiting = self.queues[Status.WAITING]
        self.prefilling = self.queues[Status.PREFILLING]
        self.admitted = self.queues[Status.ADMITTED]
        self.running = self.queues[Status.RUNNING]
        self.draining = self.queues[Status.DRAINING]
        self.preempted = self.queues[Status.PREEMPTED]
        self.preemptions = 0
        self._cache_config = cache_config
        self._quantum = quantum
        self._releases: list[Release] = []
        self._queued = 0
        self._steps = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self._releases and not any(self.queues.values())

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue. Its call must have passed `check_fits`."""
        self._enqueue(sequence)
        self.waiting[sequence] = None

    def end(self, sequence: Sequence) -> None:
        """Launch nothing more of a sequence, and free what it holds as soon as possible."""
        sequence.ended = True
        if sequence.status in (Status.WAITING, Status.PREEMPTED):
            self._free(sequence, self._releases)
        elif sequence.status is not Status.DRAINING:
            self._move(sequence, Status.DRAINING)

    def schedule(self, is_drained: Callable[[int], bool]) -> Schedule:
        """The next iteration; sequences are updated as if it were launched. is_drained: see `Worker.drained`."""
        schedule = Schedule(releases=self._releases)
        self._releases = []
        for sequence in list(self.draining):
            if not sequence.in_flight and is_drained(sequence.seq_index):
                self._free(sequence, schedule.releases)
        for sequence in list(self.admitted):
            if is_drained(sequence.seq_index):
                self.blocks.free_staging(sequence)
                self._move(sequence, Status.RUNNING)
        self._schedule_step(schedule)
        self._start_waiting(schedule)
        self._schedule_prefill(schedule)
        self._preempt()
        return schedule

    def _schedule_step(self, schedule: Schedule) -> None:
        schedule.stepped = [sequence for sequence in self.running if not sequence.waits_for_mask]
        if not schedule.stepped:
            return
        self._steps += 1
        schedule.decode_batch = make_decode_batch(schedule.stepped)
        for sequence in schedule.stepped:
            sequence.steps_run += 1
            sequence.sampled += 1
            sequence.in_flight += 1
            if sequence.all_sampled:
                self._move(sequence, Status.DRAINING)

    def _start_waiting(self, schedule: Schedule) -> None:
        """Start new and preempted sequences, as many as fit."""
        passed_over: list[Sequence] = []
        barred: set[Status] = set()
        for sequence in self._queue_front():
            if not self.blocks.seq_indices.num_free:
                return
            preempted, needed = sequence.status is Status.PREEMPTED, self._pages_needed(sequence)
            # Resuming copies a whole sequence to the device: one in an iteration, or the running ones would stall.
            wait = sequence.status in barred or (preempted and bool(schedule.resumed))
            if wait or not self.blocks.can_allocate(needed):
                passed_over.append(sequence)
                if sequence.times_overtaken >= MAX_OVERTAKEN:
                    # Host pages are freed only when sequences end, so those that hold some must be able to go on.
                    lacks_host = needed.host > self.blocks.host.num_free
                    barred |= {Status.WAITING} if lacks_host else {Status.WAITING, Status.PREEMPTED}
                continue
            for other in passed_over:
                other.times_overtaken += 1
            self.blocks.allocate(sequence, needed)
            sequence.times_overtaken = sequence.steps_run = 0
            if preempted:
                schedule.resumed.append(sequence)
                schedule.admitted.append(sequence)
            self._move(sequence, Status.ADMITTED if preempted else Status.PREFILLING)

    def _schedule_prefill(self, schedule: Schedule) -> None:
        """Divide the tokens of one forward among the prompts that are not complete."""
        budget = self._cache_config.prefill_token_budget
        oldest = next(iter(self.prefilling), None)
        guaranteed = min(oldest.prompt_left, (budget + 1) // 2) if oldest else 0
        budget -= guaranteed
        for sequence in sorted(self.prefilling, key=lambda sequence: sequence.prompt_left):
            own = guaranteed if sequence is oldest else 0
            share = min(sequence.prompt_left, budget + own)
            budget -= share - own
            if share:
                self._add_chunk(sequence, share, schedule)
        if schedule.chunks:
            positions = np.array([sequence.length for sequence in schedule.completed], np.int32)
            schedule.sampling = make_sampling_batch(schedule.completed, positions)

    def _add_chunk(self, sequence: Sequence, tokens: int, schedule: Schedule) -> None:
        start, end = sequence.prefilled, sequence.prefilled + tokens
        last, params = tokens == sequence.prompt_left, sequence.call.params
        # Nothing will read the keys and values of a sequence that ends with its first token: no offload.
        host_pages = sequence.host_pages if params.max_tokens > 1 else NO_PAGES
        chunk = PrefillChunk(
            sequence.seq_index, sequence.call.prompt[start:end], start, sequence.staging_pages, host_pages, last,
            full_attention=not params.sparse,
        )  # fmt: skip
        schedule.prefilling.append(sequence)
        schedule.chunks.append(chunk)
        sequence.prefilled = end
        sequence.in_flight += 1
        if last:
            sequence.sampled = 1
            schedule.completed.append(sequence)
            if sequence.all_sampled:
                self._move(sequence, Status.DRAINING)
            else:
                schedule.admitted.append(sequence)
                self._move(sequence, Status.ADMITTED)

    def _preempt(self) -> None:
        """Preempt the sequence that has run longest, if the first in the queue has waited long enough."""
        first = next(self._queue_front(), None)
        if not self._quantum or first is None or self.draining:
            return
        needed = self._pages_needed(first)
        if self._steps - first.waiting_since < self._quantum or self.blocks.can_allocate(needed):
            return
        candidates = [sequence for sequence in self.running if self._may_preempt(sequence, needed)]
        if candidates:
            self._move(max(candidates, key=lambda sequence: sequence.steps_run), Status.DRAINING)

    def _may_preempt(self, sequence: Sequence, needed: PagesNeeded) -> bool:
        resumable = sequence.length <= self._cache_config.staging_pages * STAGING_PAGE_SIZE
        fits = self.blocks.can_allocate(needed, preempting=sequence)
        return sequence.steps_run >= self._quantum and resumable and fits

    def _queue_front(self) -> Iterator[Sequence]:
        """The first of those that wait, new or preempted, in order."""
        fronts = ([*islice(queue, LOOK_AHEAD)] for queue in (self.waiting, self.preempted))
        return heapq.merge(*fronts, key=lambda sequence: sequence.queue_position)

    def _pages_needed(self, sequence: Sequence) -> PagesNeeded:
        if sequence.status is Status.PREEMPTED:
            return replace(pages_needed(sequence.call, sequence.length, self._cache_config), host=0)
        return pages_needed(sequence.call, len(sequence.call.prompt), self._cache_config)

    def _free(self, sequence: Sequence, releases: list[Release]) -> None:
        """Take back what a sequence holds. One that has not ended is preempted: it keeps its host pages."""
        held = sequence.seq_index >= 0 or len(sequence.host_pages)
        sequence.is_counted = False
        release = self.blocks.free(sequence, keep_host=not sequence.ended)
        if held:
            releases.append(release)
        if sequence.ended:
            self._move(sequence, Status.FINISHED)
        else:
            self.preemptions += 1
            self._enqueue(sequence)
            self._move(sequence, Status.PREEMPTED)

    def _enqueue(self, sequence: Sequence) -> None:
        self._queued += 1
        sequence.queue_position, sequence.waiting_since = self._queued, self._steps

    def _move(self, sequence: Sequence, status: Status) -> None:
        del self.queues[sequence.status][sequence]
        sequence.status = status
        if status is not Status.FINISHED:
            self.queues[status][sequence] = None
