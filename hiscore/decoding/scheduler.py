"""Decides what is launched next, without a thread, a clock or a device.

Sequences start in order of arrival. One that does not fit yet may be overtaken by smaller ones a limited number of
times; after that, freed memory is kept for it. Every running sequence that has room for a token is in every step;
an iteration also has at most one prefill forward (`hiscore.decoding.prefill_shares`).

A sequence has pages for its tokens and the next block of them. When a pool runs out, the newest of those that hold
some of it is preempted (`hiscore.decoding.preemption`).
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

import numpy as np

from hiscore.decoding.batch import make_decode_batch, make_sampling_batch
from hiscore.decoding.block_manager import (
    NOTHING,
    BlockManager,
    PagesNeeded,
    Release,
    pages_needed,
    staging_pages_of,
)
from hiscore.decoding.preemption import Patience, newest
from hiscore.decoding.prefill_shares import share_forward
from hiscore.decoding.prefix_cache import NOTHING_FOUND, PrefixCache
from hiscore.decoding.schedule import Schedule
from hiscore.decoding.sequence import Sequence, Status
from hiscore.decoding.spilling import to_recall, to_spill
from hiscore.decoding.worker.interface import (
    NO_PAGES,
    CacheConfig,
    PrefillChunk,
)

MAX_OVERTAKEN = 16
# How many from the front of each queue are considered in an iteration.
LOOK_AHEAD = 16

Fifo = dict[Sequence, None]  # a set in order of insertion


def by_age(sequence: Sequence) -> int:
    """A key that sorts the oldest first; one that was preempted for another is new again."""
    return sequence.queue_position


class Scheduler:
    """Sequences by their status, and the pools that they share.

    Args:
        cache_config: Sizes of the pools and of a prefill forward.
        patience: When a sequence that waits may preempt another.
    """

    def __init__(self, cache_config: CacheConfig, patience: Patience) -> None:
        self.blocks = BlockManager(cache_config)
        self.prefix_cache = PrefixCache(self.blocks.host, cache_config)
        self.queues: dict[Status, Fifo] = {status: {} for status in Status if status is not Status.FINISHED}
        self.waiting = self.queues[Status.WAITING]
        self.prefilling = self.queues[Status.PREFILLING]
        self.admitted = self.queues[Status.ADMITTED]
        self.running = self.queues[Status.RUNNING]
        self.draining = self.queues[Status.DRAINING]
        self.preempted = self.queues[Status.PREEMPTED]
        self.preemptions = 0
        self._cache_config = cache_config
        self._patience = patience
        self._releases: list[Release] = []
        self._queued = 0
        self._steps = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self._releases and not any(self.queues.values())

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue. Its call must have passed `check_fits`."""
        sequence.whole = self._cache_config.whole_if_it_fits and sequence.call.params.sparse
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
                sequence.is_indexed = True
                self._move(sequence, Status.RUNNING)
        self._publish_prompts()
        self._schedule_step(schedule)
        self._start_waiting(schedule)
        self._schedule_prefill(schedule)
        self._recall()
        self._preempt_for_starving()
        return schedule

    def _publish_prompts(self) -> None:
        """Let others find the prompts of those that run, once a token says that they were computed well."""
        for sequence in self.running:
            if not sequence.is_published and sequence.received:
                self.prefix_cache.publish(
                    sequence, self.blocks.blocks_of(sequence), len(sequence.call.prompt)
                )
                sequence.is_published = True

    def _schedule_step(self, schedule: Schedule) -> None:
        # The oldest first: it gets what there is.
        for sequence in sorted(self.running, key=by_age):
            if (
                sequence.status is Status.RUNNING
                and not sequence.waits_for_mask
                and self._has_room(sequence, schedule)
            ):
                schedule.stepped.append(sequence)
        if not schedule.stepped:
            return
        self._steps += 1
        schedule.decode_batch = make_decode_batch(schedule.stepped)
        for sequence in schedule.stepped:
            # A step that only repeats what is known is none: everyone's turn must bring something new.
            sequence.steps_run += sequence.sampled >= sequence.replayed
            sequence.sampled += 1
            sequence.in_flight += 1
            if sequence.all_sampled:
                self._move(sequence, Status.DRAINING)

    def _has_room(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Give a running sequence room for its next token; preempt the newest if there is none."""
        missing = self.blocks.missing(sequence)
        while missing is not NOTHING:
            lacks_host = missing.host > self.blocks.host.num_free
            if not lacks_host and missing.device <= self.blocks.device.num_free:
                schedule.growths.append(self.blocks.grow(sequence, missing))
                break
            if not self._make_room(sequence, lacks_host, schedule):
                return False
        return True

    def _make_room(self, sequence: Sequence, lacks_host: bool, schedule: Schedule) -> bool:
        """Take memory from the newest; returns whether some is free at once."""
        if self.draining or (not lacks_host and self._spill(self.running)):
            return False
        victim = newest([*self.running, *self.preempted], on_host=lacks_host)
        assert victim is not None  # the sequence itself
        if victim.status is Status.PREEMPTED:
            self._drop_host(victim, schedule.releases)
            return True
        # Those that are being prefilled may be newer still: they are preempted when they run.
        if victim is not sequence or not (self.prefilling or self.admitted):
            victim.drops_host = lacks_host
            self._move(victim, Status.DRAINING)
        return False

    def _spill(self, candidates: Iterable[Sequence]) -> bool:
        """Let the longest of the sequences select from now on; returns whether there is one to spill."""
        longest = to_spill(candidates, self._cache_config)
        if longest is None:
            return False
        longest.whole = False
        if longest.status is Status.RUNNING:
            # It goes on from its host pages, with a buffer.
            self._move(longest, Status.DRAINING)
        return True

    def _recall(self) -> None:
        """Let a spilled sequence attend to everything again, if nobody waits and there is room for all of it."""
        if not self._cache_config.whole_if_it_fits or self.waiting or self.preempted or self.draining:
            return
        free = self.blocks.device.num_free - self._spare().device
        if recalled := to_recall(self.running, free, self._cache_config):
            recalled.whole = True
            self._move(recalled, Status.DRAINING)

    def _start_waiting(self, schedule: Schedule) -> None:
        """Start new and preempted sequences, as many as fit."""
        self._start_fitting(schedule)
        # What is left may be held by preempted sequences that cannot go on either.
        while not self._active and (holder := newest(self.preempted, on_host=True)):
            self._drop_host(holder, schedule.releases)
            self._start_fitting(schedule)

    def _start_fitting(self, schedule: Schedule) -> None:
        passed_over: list[Sequence] = []
        barred: set[Status] = set()
        front, spare = self._queue_front(), None
        for sequence in front:
            if not self.blocks.seq_indices.num_free:
                return
            spare = spare or self._spare()
            restored, needed = len(sequence.host_pages) > 0, self._pages_needed(sequence)
            # Resuming copies a whole sequence to the device: one in an iteration, or the running ones would stall.
            wait = sequence.status in barred or (restored and bool(schedule.resumed))
            if not wait and not passed_over and not self.draining:
                # The first in the queue: others or itself are spilled for it.
                while not self.blocks.can_allocate(needed, spare) and self.blocks.can_allocate(
                    replace(needed, device=0), replace(spare, device=0)
                ):
                    if not self._spill([sequence, *self.running]) or self.draining:
                        break
                    needed = self._pages_needed(sequence)
            found = NOTHING_FOUND if wait or restored else self.prefix_cache.take(sequence)
            needed = replace(needed, host=needed.host - len(found.taken))
            if wait or not self.blocks.can_allocate(needed, spare):
                self.prefix_cache.give_back(found)
                passed_over.append(sequence)
                if sequence.times_overtaken >= MAX_OVERTAKEN:
                    # Preempted sequences hold host pages: they must be able to go on.
                    lacks_host = needed.host > self.blocks.host.num_free
                    barred |= {Status.WAITING} if lacks_host else {Status.WAITING, Status.PREEMPTED}
                continue
            for other in passed_over:
                other.times_overtaken += 1
            prefix = self.blocks.allocate(sequence, needed, found)
            if prefix is not None:
                self.prefix_cache.count(sequence, prefix.tokens)
                sequence.prefilled = prefix.tokens
                schedule.fetched.append((sequence, prefix))
            spare += self.blocks.will_grow(sequence)
            sequence.times_overtaken = sequence.steps_run = 0
            sequence.restored = restored
            if restored:
                schedule.resumed.append(sequence)
                schedule.admitted.append(sequence)
            self._move(sequence, Status.ADMITTED if restored else Status.PREFILLING)

    def _schedule_prefill(self, schedule: Schedule) -> None:
        for sequence, tokens in share_forward(self.prefilling, self._cache_config):
            self._add_chunk(sequence, tokens, schedule)
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
            sequence.sampled += 1
            schedule.completed.append(sequence)
            if sequence.all_sampled:
                self._move(sequence, Status.DRAINING)
            else:
                schedule.admitted.append(sequence)
                self._move(sequence, Status.ADMITTED)

    def _preempt_for_starving(self) -> None:
        """Preempt the sequence that has run longest, if the first in the queue has lost its patience."""
        first = next(iter(self._queue_front()), None)
        if first is None or self.draining or not self._patience.is_lost(first, self._steps):
            return
        needed, spare = self._pages_needed(first), self._spare()
        if self.blocks.can_allocate(needed, spare):
            return
        lacks_host = needed.host + spare.host > self.blocks.host.num_free
        victims = [each for each in self.running if self._patience.may_preempt(each, first)]
        victims = [each for each in victims if self.blocks.can_allocate(needed, spare, each, lacks_host)]
        if victims:
            victim = max(victims, key=lambda sequence: sequence.steps_run)
            victim.drops_host = lacks_host
            self._enqueue(victim)
            self._move(victim, Status.DRAINING)

    @property
    def _active(self) -> bool:
        """Whether some sequence holds memory and will go on or free it."""
        return bool(self.prefilling or self.admitted or self.running or self.draining)

    def _spare(self) -> PagesNeeded:
        """What those that run may need next: it is left to them when another starts."""
        active = (*self.prefilling, *self.admitted, *self.running)
        return sum((self.blocks.will_grow(each) for each in active), NOTHING)

    def _queue_front(self) -> list[Sequence]:
        """The first of those that wait, new or preempted, in order."""
        first = [*islice(self.waiting, LOOK_AHEAD), *heapq.nsmallest(LOOK_AHEAD, self.preempted, key=by_age)]
        return sorted(first, key=by_age)

    def _pages_needed(self, sequence: Sequence) -> PagesNeeded:
        """What it needs besides the host pages that it has."""
        if len(sequence.host_pages):
            # It may have more pages than its length needs: one that starts over gets all that it had.
            held = len(sequence.host_pages) * self._cache_config.page_size - 1
            tokens = max(sequence.length, held)
            needed = pages_needed(sequence.call, tokens, self._cache_config, sequence.whole)
            host, staging = len(self.blocks.blocks_of(sequence)), staging_pages_of(sequence.length)
            return replace(needed, host=needed.host - host, staging=staging)
        # One that starts over soon has what it had: with less it would only be preempted again.
        prompt = len(sequence.call.prompt)
        tokens = prompt + max(0, sequence.replayed - 1)
        needed = pages_needed(sequence.call, tokens, self._cache_config, sequence.whole)
        return replace(needed, staging=staging_pages_of(prompt))

    def _free(self, sequence: Sequence, releases: list[Release]) -> None:
        """Take back what a sequence holds. One that has not ended is preempted: it may keep its host pages."""
        drops_host, sequence.drops_host = sequence.ended or sequence.drops_host, False
        held = sequence.seq_index >= 0 or len(sequence.host_pages)
        sequence.is_counted = False
        if drops_host and sequence.is_indexed and not sequence.has_failed:
            self.prefix_cache.publish(sequence, self.blocks.blocks_of(sequence), sequence.length)
        release = self.blocks.free(sequence, keep_host=not drops_host)
        if held:
            releases.append(release)
        if sequence.ended:
            self._move(sequence, Status.FINISHED)
            return
        self.preemptions += 1
        if drops_host:
            sequence.start_over()
        sequence.waiting_since = self._steps
        self._move(sequence, Status.PREEMPTED)

    def _drop_host(self, sequence: Sequence, releases: list[Release]) -> None:
        """Take the host pages of a preempted sequence."""
        releases.append(self.blocks.free(sequence, keep_host=False))
        sequence.start_over()

    def _enqueue(self, sequence: Sequence) -> None:
        self._queued += 1
        sequence.queue_position, sequence.waiting_since = self._queued, self._steps

    def _move(self, sequence: Sequence, status: Status) -> None:
        del self.queues[sequence.status][sequence]
        sequence.status = status
        if status is not Status.FINISHED:
            self.queues[status][sequence] = None
