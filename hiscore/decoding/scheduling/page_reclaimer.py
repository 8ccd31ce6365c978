"""Finds pages for sequences, and reclaims them from others, which are spilled or preempted for that."""

from collections.abc import Iterable

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.block_pool import Release
from hiscore.decoding.pools.page_needs import NOTHING, PagesNeeded
from hiscore.decoding.scheduling.preemption import newest
from hiscore.decoding.scheduling.queues import Queues
from hiscore.decoding.scheduling.schedule import Schedule
from hiscore.decoding.scheduling.spilling import to_recall, to_spill
from hiscore.decoding.sequence import Sequence, Status


class PageReclaimer:
    def __init__(self, queues: Queues, blocks: BlockManager, cache_config: CacheConfig) -> None:
        self._queues, self._blocks, self._cache_config = queues, blocks, cache_config

    def append_slot(self, sequence: Sequence, schedule: Schedule) -> bool:
        """Give a running sequence room for its next token; preempt the newest if there is none."""
        missing = self._blocks.missing(sequence)
        while missing is not NOTHING:
            given_up = self._blocks.to_give_up(missing)
            if not given_up and missing.device <= self._blocks.device.num_free:
                schedule.growths.append(self._blocks.grow(sequence, missing))
                break
            if not self._take(sequence, given_up, schedule):
                return False
        return True

    def _take(self, sequence: Sequence, given_up: int, schedule: Schedule) -> bool:
        """Take `given_up` host blocks, or device memory if 0, from the newest; returns whether it is free now."""
        lacks_host = given_up > 0
        if self._queues.draining or (not lacks_host and self.spill(self._queues.running)):
            return False
        victim = newest([*self._queues.running, *self._queues.preempted], on_host=lacks_host)
        assert victim is not None  # the sequence itself
        if victim.status is Status.PREEMPTED:
            self.take_host_blocks(victim, given_up, schedule.releases)
            return True
        # Those that are being prefilled may be newer still: they are preempted when they run.
        if victim is not sequence or not self._queues.starting:
            victim.turn.gives_up = given_up
            self._queues.move(victim, Status.DRAINING)
        return False

    def spill(self, candidates: Iterable[Sequence]) -> bool:
        """Let the longest of the sequences select from now on; returns whether there is one to spill."""
        longest = to_spill(candidates, self._cache_config)
        if longest is None:
            return False
        longest.resident = False
        # The prompt is prefilled without selection.
        dense = max(longest.length, len(longest.call.prompt))
        longest.full_attention_tokens = min(longest.full_attention_tokens, dense)
        if longest.status is Status.RUNNING:
            # It goes on from its host pages, with a buffer.
            self._queues.move(longest, Status.DRAINING)
        return True

    def recall(self) -> None:
        """Let a spilled sequence attend to everything again, if nobody waits and there is room for all of it."""
        if (
            not self._cache_config.resident_if_it_fits
            or self._queues.waiting
            or self._queues.preempted
            or self._queues.draining
            or all(each.resident for each in self._queues.running)
        ):
            return
        free = self._blocks.device.num_free - self.spare().device
        if recalled := to_recall(self._queues.running, free, self._cache_config):
            recalled.resident = True
            self._queues.move(recalled, Status.DRAINING)

    def spare(self) -> PagesNeeded:
        """Pages that running sequences may need next, which a starting sequence leaves to them."""
        return sum((self._blocks.will_grow(each) for each in self._queues.active), NOTHING)

    def take_host_blocks(self, sequence: Sequence, blocks: int, releases: list[Release]) -> None:
        """Take blocks of the host from a preempted sequence, its last ones, or all if too few would be left."""
        left = self._blocks.blocks_kept(sequence, blocks)
        releases.append(self._blocks.free(sequence, left))
        sequence.go_back(left * self._cache_config.block_tokens)
