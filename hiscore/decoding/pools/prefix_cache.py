"""Finds what a prompt has in common with sequences before it, among the blocks of the host pool.

Full blocks are published under a hash of all token ids up to their end, once they are on the host: a prompt's
while its sequence runs, generated ones when it ends. A call finds only blocks of calls with the same salt that
attend to as much: keys and values depend on what was attended to.

A sequence takes the blocks that it finds, with what is left of each on the device. Blocks that another sequence
holds are copied, unless all layers are dense: sparse layers keep their pages on the device by host page.

With recurrent layers it takes blocks up to one with a snapshot alone (`hiscore.decoding.pools.states`). A prompt
leaves two: at its own last block, and at the end of what it shares with an earlier one, for the next with that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.pools.host_pool import HostPool
from hiscore.decoding.pools.states import States
from hiscore.decoding.sequence import Sequence
from hiscore.page_hashes import PageHashes


@dataclass(frozen=True)
class Found:
    """The blocks that a prompt begins with, int32 [n]; `copied`, bool [n], are held by another sequence.

    `state_slot` has their state, if layers are recurrent; `snapshot_ends` are as in `Sequence`.
    """

    blocks: Int32
    copied: NDArray[np.bool_]
    state_slot: int = -1
    snapshot_ends: tuple[int, ...] = ()

    @property
    def taken(self) -> Int32:
        """Blocks that the sequence takes itself: int32."""
        return self.blocks[~self.copied]


NOTHING_FOUND = Found(np.empty(0, np.int32), np.empty(0, bool))


class PrefixCache:
    def __init__(self, host: HostPool, states: States, cache_config: CacheConfig) -> None:
        self.hits = self.cached_tokens = self.cached_on_device = 0
        self._host, self._states, self._config = host, states, cache_config

    def hash_prompt(self, sequence: Sequence) -> None:
        """Compute the hashes for `take`, which take long, on any thread before the sequence is scheduled."""
        if self._config.prefix_cache:
            self._host.find(self._hashes_of_prompt(sequence))

    def take(self, sequence: Sequence) -> Found:
        """Find the beginning of a sequence's prompt, and hold the blocks that it takes."""
        if not self._config.prefix_cache:
            return NOTHING_FOUND
        blocks, slot = self._host.find(self._hashes_of_prompt(sequence)), -1
        ends: tuple[int, ...] = ()
        if self._config.state_slots:
            shared = len(blocks)
            usable, slot = self._states.find(self._hashes(sequence, shared))
            blocks = blocks[:usable]
            last = (len(sequence.call.prompt) - 1) // self._config.block_tokens
            ends = tuple(
                each * self._config.block_tokens for each in sorted({shared, last}) if usable < each <= last
            )
        copied = np.zeros(len(blocks), bool) if self._config.dense else self._host.is_held(blocks)
        found = Found(blocks, copied, slot, ends)
        self._host.hold(found.taken)
        return found

    def give_back(self, found: Found) -> None:
        """Let go of what was taken for a sequence that does not start yet."""
        if len(found.blocks):
            self._host.release(found.taken)

    def count(self, prefix: Prefix) -> None:
        self.hits += 1
        self.cached_tokens += prefix.tokens
        self.cached_on_device += prefix.tokens_on_device

    def publish(self, sequence: Sequence, blocks: Int32, tokens: int) -> None:
        """Let others find the full blocks of a sequence's first tokens, which must be on the host."""
        known = len(sequence.call.prompt) + sequence.num_output_tokens
        full = int(min(tokens, known, sequence.full_attention_tokens)) // self._config.block_tokens
        if self._config.prefix_cache and full:
            self._host.publish(self._hashes(sequence, full), blocks[:full])
            self._states.publish(sequence, self._hashes(sequence, full))

    def _hashes_of_prompt(self, sequence: Sequence) -> Iterator[bytes]:
        """Yield hashes of the blocks that may be found, as asked for; at least one token is left to prefill."""
        most = (len(sequence.call.prompt) - 1) // self._config.block_tokens
        given = 0
        while given < most:
            hashes = self._hashes(sequence, min(most, 2 * given or 1))
            yield from hashes[given:]
            given = len(hashes)

    def _hashes(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """Hashes of a sequence's first blocks, which must be full."""
        if sequence.hashes is None:
            params = sequence.call.params
            salt = f"{params.sparse}:{params.cache_salt}".encode()
            sequence.hashes = PageHashes(self._config.block_tokens, salt)
        hashes, prompt = sequence.hashes, sequence.call.prompt
        start, end = hashes.tokens, blocks * self._config.block_tokens
        if start < end:
            hashes.extend(prompt[start:end])
            known = max(0, start - len(prompt))
            hashes.extend(np.array(sequence.output_ids[known : max(0, end - len(prompt))], np.int32))
        return hashes.pages[:blocks]
