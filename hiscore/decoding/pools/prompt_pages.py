"""Pages into which prompts are prefilled: pages that they keep, or others that are lent to them for that.

A preempted sequence comes back the same way, with all that it has on the host; if it goes on selecting, only with
what its buffer starts with, for its index is still there. Pages may stay for a prompt that begins alike.
"""

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32, Int64, divided
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.interface.worker import NO_PAGES
from hiscore.decoding.kv_cache.buffer_pages import initial_pages
from hiscore.decoding.pools.block_pool import BlockPool
from hiscore.decoding.pools.device_pool import DevicePool
from hiscore.decoding.pools.page_needs import PagesNeeded
from hiscore.decoding.pools.prefix_cache import Found
from hiscore.decoding.sequence import Sequence


class PromptPages:
    """Gives sequences their pages of the device buffers, and lends pages to prompts."""

    def __init__(self, device: DevicePool, staging: BlockPool, cache_config: CacheConfig) -> None:
        self.from_buffers = cache_config.prompts_in == "buffers"
        self._device, self._staging, self._config = device, staging, cache_config
        self._lender = device if self.from_buffers else staging

    def can_lend(self, needed: PagesNeeded, spare: PagesNeeded, device_free: int) -> bool:
        """Return whether there are pages to lend, beside `spare` and the pages that sequences keep."""
        if self.from_buffers:
            return needed.staging + needed.device + spare.device <= device_free
        return needed.staging <= self._staging.num_free

    def to_stage(self, sequence: Sequence) -> int:
        """Count the tokens of a preempted sequence that come back through pages which it may not keep."""
        found = self._in_buffer(sequence)
        if found is None:
            return sequence.length
        # Those of the buffers are copied to where they stay.
        return 0 if self.from_buffers else len(found[0]) * self._config.page_size

    def give(self, sequence: Sequence, needed: PagesNeeded, found: Found) -> NDArray[np.bool_]:
        """Give a sequence with host pages its device pages; returns which pages found are there: bool [n]."""
        is_taken = np.repeat(~found.copied, self._config.block_pages)
        pages = np.full(max(needed.device, len(is_taken)), -1, np.int32)
        if needed.device == len(sequence.held.host_pages):  # so they are in the order of positions
            pages[: len(is_taken)][is_taken] = self._device.take(found.taken).ravel()
        on_device = pages[: len(is_taken)] >= 0
        pages = pages[: needed.device]
        pages[pages < 0] = self._device.allocate(int((pages < 0).sum()))
        sequence.held.device_pages = pages
        self._lend(sequence, needed.staging)
        return on_device | (self._config.prompts_in == "dense")

    def stay(self, sequence: Sequence) -> bool:
        """Return whether others may find the pages of a sequence on the device: as it ends, with all of them."""
        is_whole = len(sequence.held.device_pages) == len(sequence.held.host_pages)
        return self.from_buffers and is_whole and sequence.ended and not sequence.has_failed

    def _lend(self, sequence: Sequence, count: int) -> None:
        """Lend pages to a sequence, which must have the pages that it keeps, and list its staging pages."""
        held = sequence.held
        found, config = self._in_buffer(sequence), self._config
        held.restored_pages = None if found is None else found[0]
        held.borrowed_pages = self._lender.allocate(count)
        if config.prompts_in == "staging":
            held.staging_pages = held.borrowed_pages
        elif config.prompts_in == "dense":
            held.staging_pages = staging_pages_in(held.host_pages, config)
        elif found is not None:
            held.staging_pages = staging_pages_in(held.device_pages[found[1]], config)
        else:
            pages = held.borrowed_pages if count else held.device_pages
            held.staging_pages = staging_pages_in(pages, config)

    def take_back(self, sequence: Sequence) -> None:
        self._lender.free(sequence.held.borrowed_pages)
        sequence.held.staging_pages = sequence.held.borrowed_pages = NO_PAGES

    def _in_buffer(self, sequence: Sequence) -> tuple[Int64, Int64] | None:
        """Return the pages that a preempted sequence goes on with, and their places in its buffer; None: all."""
        config = self._config
        full = sequence.length // config.page_size
        if config.dense or not (sequence.selects and sequence.has_index) or full < config.buffer_pages:
            return None
        return initial_pages(sequence.length, config.page_size, config.lru_pages, config.ring_pages)


def staging_pages_in(pages: Int32, cache_config: CacheConfig) -> Int32:
    """Divide pages into staging pages, in order: int32."""
    return divided(pages, cache_config.page_size // STAGING_PAGE_SIZE)
