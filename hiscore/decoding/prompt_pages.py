"""Where prompts are prefilled: in pages that they keep, or in others that are lent to them for that."""

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.block_pool import BlockPool
from hiscore.decoding.page_needs import PagesNeeded
from hiscore.decoding.sequence import Sequence
from hiscore.decoding.worker.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.worker.interface import NO_PAGES


class PromptPages:
    """Lends pages to prompts.

    Args:
        device: The device buffers.
        staging: The staging pool.
        cache_config: Says which of them lends.
    """

    def __init__(self, device: BlockPool, staging: BlockPool, cache_config: CacheConfig) -> None:
        self.from_buffers = cache_config.prompts_in == "buffers"
        self._device, self._staging, self._config = device, staging, cache_config
        self._lender = device if self.from_buffers else staging

    def can_lend(self, needed: PagesNeeded, spare: PagesNeeded, device_free: int) -> bool:
        """Whether there are pages to lend, beside those that sequences keep.

        Args:
            needed: For a sequence that starts.
            spare: What must be left.
            device_free: Pages of the device buffers that are free, or will be.
        """
        if self.from_buffers:
            return needed.staging + needed.device + spare.device <= device_free
        return needed.staging <= self._staging.num_free

    def lend(self, sequence: Sequence, count: int) -> None:
        """Lend a sequence pages, and say where its prompt is prefilled: it must have the pages that it keeps."""
        sequence.borrowed_pages = self._lender.allocate(count)
        sequence.staging_pages = self._staging_of(sequence)

    def take_back(self, sequence: Sequence) -> None:
        """Take back what a sequence was lent."""
        self._lender.free(sequence.borrowed_pages)
        sequence.staging_pages = sequence.borrowed_pages = NO_PAGES

    def _staging_of(self, sequence: Sequence) -> Int32:
        borrowed = sequence.borrowed_pages
        if self._config.prompts_in == "staging":
            return borrowed
        if self._config.prompts_in == "dense":
            return staging_pages_in(sequence.host_pages, self._config)
        return staging_pages_in(borrowed if len(borrowed) else sequence.device_pages, self._config)


def staging_pages_in(pages: Int32, cache_config: CacheConfig) -> Int32:
    """The staging pages that larger pages consist of, in order: int32."""
    parts = cache_config.page_size // STAGING_PAGE_SIZE
    return (pages[:, None] * parts + np.arange(parts, dtype=np.int32)).ravel().astype(np.int32)
