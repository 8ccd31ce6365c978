"""Sizes of the pools, as the scheduler and the worker agree on them."""

from dataclasses import dataclass
from typing import Literal

STAGING_PAGE_SIZE = 16
"""Tokens per page of staging, in which prompts are prefilled."""

SHARED_TOKENS = 4_096
"""Tokens of a prefill forward for which other sequences would wait, at most."""

PromptPool = Literal["staging", "buffers", "dense"]
"""Kind of staging: a pool of its own, or the pages that a sequence keeps anyway, in the device buffers or in dense
layers. A sequence that keeps fewer pages than its prompt has borrows others of the buffers meanwhile.
"""


@dataclass(frozen=True)
class CacheConfig:
    """Pool sizes and limits that the scheduler plans with.

    Attributes:
        page_size: Tokens per page of the host pool and of the device buffers.
        lru_pages: Device pages of a sparse sequence that swap-ins replace, least recently used first.
        ring_pages: Device pages of a sparse sequence that hold its newest tokens.
        staging_pages: Pages of a staging pool of its own, `STAGING_PAGE_SIZE` tokens each.
        max_sequences: Sequences that may hold pages on the device at once.
        dense: Every layer is dense: sequences own no pages of the device pool.
        resident_if_it_fits: Sequences attend to everything while the device has room for all of them.
        context_setting: Setting that decides `context_length`.
        host_setting: Setting that decides `host_pages`, each of which takes memory on the device, too.
        block_size: Tokens for which a sequence gets host pages at once, a multiple of `page_size`; 0: one page.
        prefix_cache: Sequences find what others that begin alike have left on the host.
        reserved_pages: Device pages that sequences must be able to leave to a prompt that borrows them.
        host_is_shared: Ranks store host pages for each other, and exchange them on their COMPUTE queues.
        window_pages: Pages of layers that keep a window only.
        window_ring: Pages that a sequence has of these at most; 0: there are no such layers.
        window: Tokens of the longest window.
        state_slots: States of recurrent layers, of sequences and of prefixes; 0: there are no such layers.
    """

    page_size: int
    lru_pages: int
    ring_pages: int
    host_pages: int
    device_pages: int
    staging_pages: int
    max_sequences: int
    prefill_token_budget: int
    context_length: int
    dense: bool = False
    resident_if_it_fits: bool = False
    context_setting: str = "MAX_CONTEXT"
    host_setting: str = "HOST_KV_BYTES"
    block_size: int = 0
    prefix_cache: bool = False
    prompts_in: PromptPool = "staging"
    reserved_pages: int = 0
    host_is_shared: bool = False
    window_pages: int = 0
    window_ring: int = 0
    window: int = 0
    state_slots: int = 0

    @property
    def restores_beside_forwards(self) -> bool:
        """Return whether sequences are copied from the host beside others' forwards; dense ones need no copy."""
        return self.prompts_in != "dense" and not self.host_is_shared

    @property
    def prompt_pages(self) -> int:
        """Pages of staging, `STAGING_PAGE_SIZE` tokens each, wherever they are."""
        pages = {"buffers": self.device_pages, "dense": self.host_pages}.get(self.prompts_in)
        return self.staging_pages if pages is None else pages * self.page_size // STAGING_PAGE_SIZE

    @property
    def kept_pages(self) -> int:
        """Device pages for sequences that keep them: all but the reserve."""
        return self.device_pages - self.reserved_pages

    @property
    def block_pages(self) -> int:
        return max(1, self.block_size // self.page_size)

    @property
    def block_tokens(self) -> int:
        return self.block_pages * self.page_size

    @property
    def max_pages(self) -> int:
        return -(-self.context_length // self.page_size)

    @property
    def buffer_pages(self) -> int:
        """Device pages of a sparse sequence at most."""
        return self.lru_pages + self.ring_pages
