"""Slots for the states of recurrent layers: one of each sequence, and copies for prompts that begin alike.

A sequence keeps its slot for as long as it has anything on the host. A *snapshot* is the state behind a prompt's
tokens up to the end of a block, found under the hash of that block once it is published. Snapshots count as free:
the least recently used one is evicted as soon as a slot is needed, then one that is not published yet, which an
earlier launch may still write. Bookkeeping only: no tensor, no device.
"""

from collections import OrderedDict
from collections.abc import Sequence as List

import numpy as np

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.decoding.sequence import Sequence


class States:
    def __init__(self, cache_config: CacheConfig) -> None:
        self._config = cache_config
        self._pool = BlockPool(cache_config.state_slots)
        self._snapshots: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._unpublished: dict[int, tuple[Sequence, int]] = {}  # by slot, with the place in the prompt

    @property
    def num_free(self) -> int:
        """Slots that can be allocated: those that no sequence holds."""
        return self._pool.num_free + self.num_cached + len(self._unpublished)

    @property
    def num_used(self) -> int:
        return self._pool.size - self.num_free

    @property
    def num_cached(self) -> int:
        return len(self._snapshots)

    def missing(self, sequence: Sequence) -> int:
        """Count the slots that a sequence lacks to start or to go on: 1 or 0."""
        return int(self._pool.size > 0 and sequence.held.state_slot < 0)

    def add(self, sequence: Sequence, count: int) -> None:
        """Give a sequence its slot, if it lacks one."""
        if count:
            sequence.held.state_slot = self._allocate()

    def has(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether a sequence that goes back to its first tokens has their state: if it loses none."""
        return not self._pool.size or tokens >= sequence.length

    def freed_by(self, sequence: Sequence, left: int) -> int:
        """Count the slots that are free once a sequence has only so many of its first blocks."""
        return int(not left and sequence.held.state_slot >= 0)

    def free(self, sequence: Sequence, left: int) -> None:
        """Free a sequence's slot, unless so many of its blocks are left, and snapshots that nobody can find."""
        held = sequence.held
        slots = [*held.snapshots.values()]
        held.snapshots = {}
        for slot in slots:
            del self._unpublished[slot]
        if self.freed_by(sequence, left):
            slots.append(held.state_slot)
            held.state_slot = -1
        self._pool.free(np.array(slots, np.int32))

    def find(self, hashes: List[bytes]) -> tuple[int, int]:
        """Find the last of a prompt's blocks with a snapshot; returns the blocks up to it, and its slot."""
        for blocks in range(len(hashes), 0, -1):
            if (slot := self._snapshots.get(hashes[blocks - 1])) is not None:
                self._snapshots.move_to_end(hashes[blocks - 1])
                return blocks, slot
        return 0, -1

    def keep(self, sequence: Sequence, tokens: int) -> None:
        """Take slots for the snapshots of a prompt's next tokens, as far as any are free."""
        end = sequence.prefilled + tokens
        for place in sequence.snapshot_ends:
            if sequence.prefilled < place <= end and self.num_free > len(self._unpublished):
                slot = sequence.held.snapshots[place] = self._allocate()
                self._unpublished[slot] = sequence, place

    def publish(self, sequence: Sequence, hashes: List[bytes]) -> None:
        """Let others find a sequence's snapshots, given the hashes of its first blocks."""
        snapshots = sequence.held.snapshots
        for place in [place for place in snapshots if place <= len(hashes) * self._config.block_tokens]:
            block, slot = hashes[place // self._config.block_tokens - 1], snapshots.pop(place)
            del self._unpublished[slot]
            if block in self._snapshots:
                self._pool.free(np.array([slot], np.int32))
            else:
                self._snapshots[block] = slot

    def _allocate(self) -> int:
        if not self._pool.num_free:
            if self._snapshots:
                _, slot = self._snapshots.popitem(last=False)
            else:
                slot, (sequence, place) = self._unpublished.popitem()
                del sequence.held.snapshots[place]
            self._pool.free(np.array([slot], np.int32))
        return int(self._pool.allocate(1)[0])
