"""Decides what is launched next, without a thread, a clock or a device.

Sequences start in order of arrival. A sequence that does not fit yet may be overtaken by smaller ones a limited
number of times; after that, freed memory is kept for it. Every running sequence that has room for a token is in
every step; an iteration also has at most one prefill forward (`hiscore.decoding.scheduling.prefill_shares`).

A sequence has pages for its tokens and the next block of them. When a pool runs out, the newest sequence that
holds some of it is preempted (`hiscore.decoding.scheduling.preemption`).
"""

from collections.abc import Callable

import numpy as np

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.block_pool import Release
from hiscore.decoding.pools.page_needs import PagesNeeded
from hiscore.decoding.pools.prefix_cache import NOTHING_FOUND, Found, PrefixCache
from hiscore.decoding.scheduling.batch import make_decode_batch, make_prefill_chunk, make_sampling_batch
from hiscore.decoding.scheduling.page_reclaimer import PageReclaimer
from hiscore.decoding.scheduling.preemption import PreemptionPolicy, newest
from hiscore.decoding.scheduling.prefill_shares import share_forward
from hiscore.decoding.scheduling.queues import Queues, by_age
from hiscore.decoding.scheduling.schedule import Schedule
from hiscore.decoding.scheduling.starvation import StarvationGuard
from hiscore.decoding.sequence import Sequence, Status

MAX_OVERTAKEN = 16


class PassedOver:
    """Sequences that did not fit in this iteration.

    Attributes:
        keepers: Sequences that were overtaken `MAX_OVERTAKEN` times: freed memory is kept for them.
        barred: The status of sequences that may not overtake the keepers.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.keepers: list[Sequence] = []
        self.barred: set[Status] = set()

    def add(self, sequence: Sequence, lacks_host: bool) -> None:
        """Pass a sequence over, which may lack memory of the host."""
        self.sequences.append(sequence)
        if sequence.turn.times_overtaken >= MAX_OVERTAKEN:
            self.keepers.append(sequence)
            # Preempted sequences hold host pages: they must be able to go on.
            self.barred |= {Status.WAITING} if lacks_host else {Status.WAITING, Status.PREEMPTED}

    def overtake(self) -> None:
        for sequence in self.sequences:
            sequence.turn.times_overtaken += 1


class Scheduler:
    """Sequences by their status, and the pools that they share."""

    def __init__(self, cache_config: CacheConfig, policy: PreemptionPolicy) -> None:
        self.blocks = BlockManager(cache_config)
        self.prefix_cache = PrefixCache(self.blocks.host, self.blocks.states, cache_config)
        self.queues = Queues()
        self._reclaimer = PageReclaimer(self.queues, self.blocks, cache_config)
        self.preemptions = 0
        self._cache_config = cache_config
        self._starvation = StarvationGuard(self.queues, self.blocks, self._reclaimer, policy, cache_config)
        self._releases: list[Release] = []
        self._steps = 0

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do and nothing to wait for."""
        return not self._releases and not self.queues

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue. Its call must have passed `check_fits`."""
        sequence.resident = self._cache_config.resident_if_it_fits and sequence.call.params.sparse
        self.queues.add(sequence, self._steps)

    def end(self, sequence: Sequence) -> None:
        """Launch nothing more of a sequence, and free what it holds as soon as possible."""
        sequence.ended = True
        if sequence.status in (Status.WAITING, Status.PREEMPTED):
            self._free(sequence, self._releases)
        elif sequence.status is not Status.DRAINING:
            self.queues.move(sequence, Status.DRAINING)

    def schedule(self, is_drained: Callable[[int], bool]) -> Schedule:
        """Make the next iteration, and update sequences as if it were launched; is_drained: `Worker.drained`."""
        schedule = Schedule(releases=self._releases)
        self._releases = []
        for sequence in list(self.queues.draining):
            if not sequence.in_flight and is_drained(sequence.held.seq_index):
                self._free(sequence, schedule.releases)
        for sequence in list(self.queues.admitted):
            if is_drained(sequence.held.seq_index):
                self.blocks.free_staging(sequence)
                self.queues.move(sequence, Status.RUNNING)
        for sequence in list(self.queues.restoring):
            if is_drained(sequence.held.seq_index):
                self._go_on(sequence, schedule)
        if self.queues.waiting:
            self.publish_prompts()  # they may begin alike
        self._schedule_step(schedule)
        self._start_waiting(schedule)
        self._schedule_prefill(schedule)
        self._starvation.make_room(schedule, self._steps)
        return schedule

    def publish_prompts(self) -> None:
        """Let others find running prompts that a token shows to be computed well; best done behind a launch."""
        for sequence in self.queues.running:
            if not sequence.is_published and sequence.read:
                self.prefix_cache.publish(
                    sequence, self.blocks.blocks_of(sequence), len(sequence.call.prompt)
                )
                sequence.is_published = True

    def _schedule_step(self, schedule: Schedule) -> None:
        # The oldest first: it gets what there is.
        for sequence in sorted(self.queues.running, key=by_age):
            if (
                sequence.status is Status.RUNNING
                and not sequence.waits_for_mask
                and self._reclaimer.append_slot(sequence, schedule)
            ):
                schedule.stepped.append(sequence)
        if not schedule.stepped:
            return
        self._steps += 1
        schedule.decode_batch = make_decode_batch(schedule.stepped)
        for sequence in schedule.stepped:
            sequence.turn.steps_run += 1
            sequence.sampled += 1
            sequence.in_flight += 1
            sequence.use_mask()
            if sequence.all_sampled:
                self.queues.move(sequence, Status.DRAINING)

    def _start_waiting(self, schedule: Schedule) -> None:
        self._start_fitting(schedule)
        # What is left may be held by preempted sequences that cannot go on either.
        while not (self.queues.active or self.queues.draining) and (
            holder := newest(self.queues.preempted, on_host=True)
        ):
            self._reclaimer.take_host_blocks(holder, len(holder.held.host_pages), schedule.releases)
            self._start_fitting(schedule)

    def _start_fitting(self, schedule: Schedule) -> None:
        """Start sequences in the order of the queue, as many as fit; small ones may overtake one that does not."""
        passed, spare = PassedOver(), None
        for sequence in self.queues.front:
            if not self.blocks.seq_indices.num_free:
                return
            spare = spare or self._reclaimer.spare()
            needed, found = self._take(sequence, schedule, passed, spare)
            if found is None:
                passed.add(sequence, lacks_host=self.blocks.to_give_up(needed) > 0)
                continue
            passed.overtake()
            self._start(sequence, needed, found, schedule)
            spare += self.blocks.will_grow(sequence)

    def _take(
        self, sequence: Sequence, schedule: Schedule, passed: PassedOver, spare: PagesNeeded
    ) -> tuple[PagesNeeded, Found | None]:
        """Hold what is found of a sequence's prompt if it starts now; None: it does not start."""
        if not self._may_start(sequence, schedule, passed, spare):
            return self.blocks.needed_to_start(sequence), None
        if not passed.sequences:
            self._spill_for(sequence, spare)
        needed, found = self.blocks.needed_to_start(sequence), NOTHING_FOUND
        # What is found spares blocks of the host alone.
        if not self.blocks.can_allocate(needed._replace(host=0), spare):
            return needed, None
        if not len(sequence.held.host_pages):
            found = self.prefix_cache.take(sequence)
            needed = needed._replace(host=needed.host - len(found.taken))
        if self.blocks.can_allocate(needed, spare):
            return needed, found
        self.prefix_cache.give_back(found)
        return needed, None

    def _may_start(
        self, sequence: Sequence, schedule: Schedule, passed: PassedOver, spare: PagesNeeded
    ) -> bool:
        """Return whether a sequence may start before the sequences passed over, if there is room."""
        # One resumes in an iteration: it is copied as a whole. Where ranks share the host pool, the running ones
        # wait for that; elsewhere for what its admission copies on the device.
        if len(sequence.held.host_pages) and schedule.resumed:
            return False
        return sequence.status not in passed.barred or self._starvation.may_overtake(
            sequence, self._steps, passed.keepers, spare
        )

    def _spill_for(self, first: Sequence, spare: PagesNeeded) -> None:
        """Spill the longest sequences, or the first in the queue itself, until it has room on the device."""
        while not self.queues.draining and self.blocks.lacks_device_pages(
            self.blocks.needed_to_start(first), spare
        ):
            if not self._reclaimer.spill([first, *self.queues.running]):
                return

    def _start(self, sequence: Sequence, needed: PagesNeeded, found: Found, schedule: Schedule) -> None:
        """Give a sequence what it needs, and let it go on from what the host has of it."""
        sequence.restored = len(sequence.held.host_pages) > 0
        sequence.snapshot_ends = found.snapshot_ends
        prefix = self.blocks.allocate(sequence, needed, found)
        if prefix is not None:
            self.prefix_cache.count(prefix)
            sequence.prefilled = prefix.tokens
            if not sequence.num_output_tokens:
                sequence.cached_tokens = prefix.tokens
            schedule.fetched.append((sequence, prefix))
        sequence.turn.times_overtaken = sequence.turn.steps_run = 0
        if sequence.restored:
            schedule.resumed.append(sequence)
        is_copied = sequence.restored or (prefix is not None and not prefix.on_device.all())
        if is_copied and self.queues.active and self._cache_config.restores_beside_forwards:
            # What reads the copy would make the others wait for it.
            self.queues.move(sequence, Status.RESTORING)
        else:
            self._go_on(sequence, schedule)

    def _go_on(self, sequence: Sequence, schedule: Schedule) -> None:
        """Prefill a sequence that has what it needs, or admit it if it was prefilled before it was preempted."""
        if sequence.restored:
            self._admit(sequence, schedule)
        self.queues.move(sequence, Status.ADMITTED if sequence.restored else Status.PREFILLING)

    def _admit(self, sequence: Sequence, schedule: Schedule) -> None:
        schedule.admitted.append(sequence)
        sequence.has_index = sequence.selects

    def _schedule_prefill(self, schedule: Schedule) -> None:
        running = len(self.queues.running)
        for sequence, tokens in share_forward(self.queues.prefilling, self._cache_config, running):
            self._add_chunk(sequence, tokens, schedule)
        if schedule.chunks:
            positions = np.array([sequence.length for sequence in schedule.completed], np.int32)
            schedule.sampling = make_sampling_batch(schedule.completed, positions)
            for sequence in schedule.completed:
                sequence.use_mask()

    def _add_chunk(self, sequence: Sequence, tokens: int, schedule: Schedule) -> None:
        windows = self.blocks.windows.of_chunk(sequence, tokens)
        self.blocks.states.keep(sequence, tokens)
        chunk = make_prefill_chunk(sequence, tokens, windows, offloads=self._keeps_prompt(sequence))
        schedule.prefilling.append(sequence)
        schedule.chunks.append(chunk)
        sequence.prefilled = chunk.end
        sequence.in_flight += 1
        if chunk.is_last:
            sequence.sampled += 1
            schedule.completed.append(sequence)
            if self._keeps_prompt(sequence):
                self._admit(sequence, schedule)
            self.queues.move(sequence, Status.DRAINING if sequence.all_sampled else Status.ADMITTED)

    def _keeps_prompt(self, sequence: Sequence) -> bool:
        """Return whether anyone may read the keys and values of a prompt: not if it ends with its first token."""
        return sequence.call.params.max_tokens > 1 or self._cache_config.prefix_cache

    def _free(self, sequence: Sequence, releases: list[Release]) -> None:
        """Take back what a sequence holds. One that has not ended is preempted: it may keep host pages."""
        held = sequence.held.seq_index >= 0 or len(sequence.held.host_pages)
        left = 0 if sequence.ended else self.blocks.blocks_kept(sequence, sequence.turn.gives_up)
        gives_up = sequence.ended or sequence.turn.gives_up > 0
        sequence.turn.gives_up, sequence.is_counted = 0, False
        # Admitted and drained, it has all of its prompt on the host, in the index and in the dense layers.
        if gives_up and not sequence.prompt_left and not sequence.has_failed:
            self.prefix_cache.publish(sequence, self.blocks.blocks_of(sequence), sequence.length)
        release = self.blocks.free(sequence, left)
        if held:
            releases.append(release)
        if sequence.ended:
            self.queues.move(sequence, Status.FINISHED)
            return
        self.preemptions += 1
        if gives_up:
            sequence.go_back(left * self._cache_config.block_tokens)
        sequence.turn.waiting_since = self._steps
        self.queues.move(sequence, Status.PREEMPTED)
