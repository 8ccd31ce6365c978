"""Ownership of the pages of every pool.

Host pages are given out in blocks. A sequence has pages for its tokens and the next one, and is given more as it
grows; when a pool runs out, the scheduler preempts. Bookkeeping only: no tensor, no device.
"""

from collections.abc import Iterable

import numpy as np

from hiscore.arrays import Int32, divided
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.worker import NO_PAGES, Growth
from hiscore.decoding.pools.block_pool import BlockPool, Release
from hiscore.decoding.pools.device_pool import DevicePool
from hiscore.decoding.pools.host_pool import HostPool
from hiscore.decoding.pools.page_needs import (
    NOTHING,
    PagesNeeded,
    device_pages_of,
    kept_pages_of,
    pages_needed,
    spilled_order,
)
from hiscore.decoding.pools.prefix_cache import NOTHING_FOUND, Found
from hiscore.decoding.pools.prompt_pages import PromptPages
from hiscore.decoding.pools.states import States
from hiscore.decoding.pools.windows import Windows
from hiscore.decoding.sequence import Sequence


class BlockManager:
    """Allocates pages of all pools, and indices into the per-sequence tables."""

    def __init__(self, cache_config: CacheConfig) -> None:
        self.seq_indices = BlockPool(cache_config.max_sequences)
        blocks = cache_config.host_pages // cache_config.block_pages
        self.device = DevicePool(cache_config.device_pages, cache_config.block_pages, blocks)
        self.host = HostPool(blocks, self.device.evict)
        self.staging = BlockPool(cache_config.staging_pages)
        self.windows = Windows(cache_config)
        self.states = States(cache_config)
        self._prompts = PromptPages(self.device, self.staging, cache_config)
        self._holders: set[Sequence] = set()
        self._cache_config = cache_config

    def can_allocate(
        self,
        needed: PagesNeeded,
        spare: PagesNeeded = NOTHING,
        without: Iterable[Sequence] = (),
        given_up: PagesNeeded = NOTHING,
    ) -> bool:
        """Return whether what is needed and spare is free `without` some sequences, with what others give up."""
        indices, device, host = self.seq_indices.num_free, self.device.num_free, self.host.num_free
        preempted = list(without)
        for each in preempted:
            indices, device = indices + (each.held.seq_index >= 0), device + len(each.held.device_pages)
        return (
            indices > 0
            and needed.host + spare.host <= host + given_up.host
            and needed.window + spare.window <= self.windows.pool.num_free + given_up.window
            and needed.state + spare.state <= self.states.num_free + given_up.state
            and needed.device + spare.device <= device
            and self._prompts.can_lend(needed, spare, device)
            # The last, for it takes longest: it is asked of all that wait, at every step.
            and needed.kept + spare.kept <= self._kept_free(preempted)
        )

    def _kept_free(self, without: list[Sequence]) -> int:
        """Count the device pages that are left for sequences to keep, once some are preempted."""
        held = sum(map(self._kept_by, self._holders)) - sum(map(self._kept_by, without))
        return self._cache_config.kept_pages - held

    def lacks_device_pages(self, needed: PagesNeeded, spare: PagesNeeded) -> bool:
        """Return whether a sequence lacks only device pages to start, for which others can be spilled."""
        staging = 0 if self._prompts.from_buffers else needed.staging
        return not self.can_allocate(needed, spare) and self.can_allocate(
            needed._replace(device=0, staging=staging), spare._replace(device=0)
        )

    def to_give_up(self, needed: PagesNeeded) -> int:
        """Count the host blocks that another sequence must give up: all, if windows or states are lacking."""
        if needed.window > self.windows.pool.num_free or needed.state > self.states.num_free:
            return self.host.size
        return max(0, needed.host - self.host.num_free)

    def allocate(
        self, sequence: Sequence, needed: PagesNeeded, found: Found = NOTHING_FOUND
    ) -> Prefix | None:
        """Give a sequence all that it needs behind its pages, or those found; returns the prefix found, if any."""
        held = sequence.held
        held.seq_index = int(self.seq_indices.allocate(1)[0])
        new, copies = self.host.allocate(needed.host), int(found.copied.sum())
        blocks = found.blocks.copy()
        blocks[found.copied] = new[:copies]
        held.source_blocks = found.blocks[found.copied]
        self.host.hold(held.source_blocks)
        self._add_blocks(sequence, np.concatenate((blocks, new[copies:])))
        self.windows.add(sequence, needed.window)
        self.states.add(sequence, needed.state)
        on_device = self._prompts.give(sequence, needed, found)
        self._holders.add(sequence)
        if not len(blocks):
            return None
        return Prefix(
            held.seq_index, len(blocks) * self._cache_config.block_tokens, self._pages_of(found.blocks),
            self._pages_of(blocks), held.staging_pages, on_device, found.state_slot, held.state_slot,
        )  # fmt: skip

    def needed_to_start(self, sequence: Sequence) -> PagesNeeded:
        """Pages that a waiting sequence needs besides the host pages that it has."""
        config = self._cache_config
        if len(sequence.held.host_pages):
            # It may have more pages than its length needs, and gets back those that were taken.
            room = len(sequence.held.host_pages) * config.page_size - 1
            tokens = max(sequence.length, room, len(sequence.call.prompt) + sequence.replayed - 1)
            staged = self._prompts.to_stage(sequence)
            needed = pages_needed(sequence.call, tokens, config, sequence.resident, staged)
            missing = needed.host - len(self.blocks_of(sequence))
            window = self.windows.missing(sequence, needed.host)
            return needed._replace(host=missing, window=window, state=self.states.missing(sequence))
        # One that starts over soon has what it had: with less it would only be preempted again.
        prompt = len(sequence.call.prompt)
        tokens = prompt + max(0, sequence.replayed - 1)
        return pages_needed(sequence.call, tokens, config, sequence.resident, prompt)

    def missing(self, sequence: Sequence) -> PagesNeeded:
        """Pages that a running sequence needs before its next step."""
        if sequence.length < len(sequence.held.host_pages) * self._cache_config.page_size:
            return NOTHING
        return self._next_block(sequence)

    def will_grow(self, sequence: Sequence) -> PagesNeeded:
        """Pages that a sequence may need next: nothing if it has enough until its end."""
        room = len(sequence.held.host_pages) * self._cache_config.page_size
        if len(sequence.call.prompt) + sequence.call.params.max_tokens <= room:
            return NOTHING
        return self._next_block(sequence)

    def grow(self, sequence: Sequence, missing: PagesNeeded) -> Growth:
        held = sequence.held
        config, start = self._cache_config, len(held.host_pages)
        before = held.device_pages
        self._add_blocks(sequence, self.host.allocate(missing.host))
        new = self.device.allocate(missing.device)
        self.windows.add(sequence, missing.window)
        held.device_pages = np.concatenate((before, new))
        host = held.host_pages
        windows = held.window_pages_of(start, len(host))
        if config.dense or len(before) < start or len(held.device_pages) == len(host):
            return Growth(held.seq_index, start, host[start:], new, window_pages=windows)
        held.device_pages, spilled = spilled_order(
            start, held.device_pages, config.lru_pages, config.ring_pages
        )
        return Growth(
            held.seq_index, start, host[start:], held.device_pages, spilled, host[:spilled], windows
        )  # fmt: skip

    def free_staging(self, sequence: Sequence) -> None:
        """Free a sequence's staging pages, and the blocks of others that were copied there."""
        self._prompts.take_back(sequence)
        self.host.release(sequence.held.source_blocks)
        sequence.held.source_blocks = NO_PAGES

    def blocks_kept(self, sequence: Sequence, given_up: int) -> int:
        """Count the first host blocks that a sequence keeps when `given_up` of those it holds alone are freed.

        Its last ones go first. What is kept has all of its prompt, the window before its end and its state, or is
        nothing: part of a prompt could not be resumed.
        """
        blocks = self.blocks_of(sequence)
        left = len(blocks)
        if given_up > 0:
            freed = np.cumsum(self.host.held_once(blocks)[::-1])
            left = max(0, left - int(np.searchsorted(freed, given_up)) - 1)
        tokens = left * self._cache_config.block_tokens
        resumable = tokens >= len(sequence.call.prompt) and self.windows.has(sequence, tokens)
        return left if resumable and self.states.has(sequence, tokens) else 0

    def freed_by(self, sequence: Sequence, left: int) -> PagesNeeded:
        """Count what is free of the host, windows and states once a sequence has only its first blocks."""
        blocks = int(self.host.held_once(self.blocks_of(sequence)[left:]).sum())
        window, state = self.windows.behind(sequence, left), self.states.freed_by(sequence, left)
        return PagesNeeded(blocks, 0, 0, window=window, state=state)

    def free(self, sequence: Sequence, left: int = 0) -> Release:
        """Free everything that a sequence holds, except its first blocks on the host if it is only preempted."""
        held = sequence.held
        blocks, device = self.blocks_of(sequence), held.device_pages
        lost = self.host.release(blocks[left:])
        if self._prompts.stay(sequence):
            device = self.device.cache(blocks, self.host.can_be_found(blocks), device)
        release = Release(held.seq_index, self._pages_of(lost), device)
        self.free_staging(sequence)
        self.device.free(release.device)
        self.windows.free(sequence, left)
        self.states.free(sequence, left)
        if held.seq_index >= 0:
            self.seq_indices.free(np.array([held.seq_index], np.int32))
        self._holders.discard(sequence)
        held.seq_index, held.device_pages = -1, NO_PAGES
        held.host_pages = held.host_pages[: left * self._cache_config.block_pages]
        return release

    def blocks_of(self, sequence: Sequence) -> Int32:
        """The host blocks that a sequence holds, in the order of positions: int32."""
        pages = self._cache_config.block_pages
        return (sequence.held.host_pages[::pages] // pages).astype(np.int32)

    def _next_block(self, sequence: Sequence) -> PagesNeeded:
        config = self._cache_config
        pages = min(len(sequence.held.host_pages) + config.block_pages, config.max_pages)
        device = device_pages_of(pages, sequence.call, config, sequence.resident)
        kept = kept_pages_of(device, sequence.call, config) - self._kept_by(sequence)
        window = self.windows.missing(sequence, -(-pages // config.block_pages))
        return PagesNeeded(1, device - len(sequence.held.device_pages), 0, kept, window)

    def _kept_by(self, sequence: Sequence) -> int:
        return kept_pages_of(len(sequence.held.device_pages), sequence.call, self._cache_config)

    def _add_blocks(self, sequence: Sequence, blocks: Int32) -> None:
        pages = np.concatenate((sequence.held.host_pages, self._pages_of(blocks)))
        sequence.held.host_pages = pages[: self._cache_config.max_pages]

    def _pages_of(self, blocks: Int32) -> Int32:
        return divided(blocks, self._cache_config.block_pages)
