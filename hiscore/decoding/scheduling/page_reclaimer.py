"""Finds pages for sequences, and reclaims them from others, which are spilled or preempted for that.

Under SELECTOR=auto a sequence attends to everything while it is on the device as a whole. When the device's pool
is full the longest is spilled: it is preempted, and goes on to its end from its host pages, with a buffer. The
longest frees the most that way, and selecting from many pages loses the least.
"""

from collections.abc import Iterable

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.block_pool import Release
from hiscore.decoding.pools.page_needs import NOTHING, PagesNeeded
from hiscore.decoding.scheduling.preemption import newest
from hiscore.decoding.scheduling.queues import Queues
from hiscore.decoding.scheduling.schedule import Schedule
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
        """Let the longest that would hold less select from now on; returns whether there is one to spill."""
        buffer = self._cache_config.buffer_pages * self._cache_config.page_size
        resident = [each for each in candidates if each.resident and _dense_tokens(each) >= buffer]
        if not resident:
            return False
        longest = max(resident, key=_dense_tokens)
        longest.resident = False
        longest.full_attention_tokens = min(longest.full_attention_tokens, _dense_tokens(longest))
        if longest.status is Status.RUNNING:
            # It goes on from its host pages, with a buffer.
            self._queues.move(longest, Status.DRAINING)
        return True

    def spare(self) -> PagesNeeded:
        """Pages that running sequences may need next, which a starting sequence leaves to them."""
        return sum((self._blocks.will_grow(each) for each in self._queues.active), NOTHING)

    def take_host_blocks(self, sequence: Sequence, blocks: int, releases: list[Release]) -> None:
        """Take blocks of the host from a preempted sequence, its last ones, or all if too few would be left."""
        left = self._blocks.blocks_kept(sequence, blocks)
        releases.append(self._blocks.free(sequence, left))
        sequence.go_back(left * self._cache_config.block_tokens)


def _dense_tokens(sequence: Sequence) -> int:
    """Count its tokens; its prompt is prefilled without selection."""
    return max(sequence.length, len(sequence.call.prompt))
