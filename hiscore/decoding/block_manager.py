"""Free blocks of every pool, and what a sequence needs of each.

A sequence is given all that it needs for its prompt and max_tokens before its prefill begins. So a full pool makes
others wait, but never interrupts a sequence that runs. Bookkeeping only: no tensor, no device.
"""

from dataclasses import dataclass, replace

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.sequence import DecodeCall, Sequence
from hiscore.decoding.worker.interface import NO_PAGES, STAGING_PAGE_SIZE, CacheConfig
from hiscore.errors import PoolExhausted, RequestError


class BlockPool:
    """Blocks 0 .. size - 1, allocated last in, first out.

    Args:
        size: Number of blocks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._stack = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._num_free = size
        self._allocated = np.zeros(size, np.bool_)

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.size - self._num_free

    def allocate(self, count: int) -> Int32:
        """Take `count` blocks.

        Returns:
            int32 [count]

        Raises:
            PoolExhausted: Fewer are free; none is taken.
        """
        if count > self._num_free:
            raise PoolExhausted
        self._num_free -= count
        blocks = self._stack[self._num_free : self._num_free + count][::-1].copy()
        self._allocated[blocks] = True
        return blocks

    def free(self, blocks: Int32) -> None:
        """Return blocks to the pool.

        Args:
            blocks: int32 [n]

        Raises:
            ValueError: One of them is free already, or named twice; none is freed.
        """
        if len(np.unique(blocks)) != len(blocks) or not self._allocated[blocks].all():
            raise ValueError("double free: a block is free already or named twice")
        self._allocated[blocks] = False
        self._stack[self._num_free : self._num_free + len(blocks)] = blocks[::-1]
        self._num_free += len(blocks)


@dataclass(frozen=True)
class PagesNeeded:
    """Pages of each pool. A sequence also needs one index."""

    host: int
    device: int
    staging: int


@dataclass(frozen=True)
class Release:
    """What a sequence has freed.

    Attributes:
        seq_index: -1 if it held none.
        host: int32 [n]: pages of the host pool.
        device: int32 [n]: pages of the device buffer.
    """

    seq_index: int
    host: Int32
    device: Int32


def pages_needed(call: DecodeCall, staged: int, cache_config: CacheConfig) -> PagesNeeded:
    """What a call needs to start with `staged` tokens in the staging pool."""
    pages = -(-(len(call.prompt) + call.params.max_tokens) // cache_config.page_size)
    if cache_config.dense:
        device = 0
    elif call.params.sparse:
        device = min(pages, cache_config.lru_pages + cache_config.ring_pages)
    else:
        device = pages
    return PagesNeeded(pages, device, -(-staged // STAGING_PAGE_SIZE))


def fill_max_tokens(call: DecodeCall, cache_config: CacheConfig) -> DecodeCall:
    """A call without `max_tokens` gets what its prompt leaves of the context and of the pools, at least 1."""
    if call.params.max_tokens:
        return call
    pages = cache_config.host_pages
    if not cache_config.dense and not call.params.sparse:
        pages = min(pages, cache_config.device_pages)
    most = min(cache_config.context_length, pages * cache_config.page_size)
    return replace(call, params=replace(call.params, max_tokens=max(1, most - len(call.prompt))))


def check_fits(call: DecodeCall, cache_config: CacheConfig) -> None:
    """Refuse a call that could never start.

    Raises:
        RequestError: The context or a pool is too small; the message says which, and its size in tokens.
    """
    prompt, max_tokens = len(call.prompt), call.params.max_tokens
    total = f"the prompt of {prompt} tokens and max_tokens {max_tokens} make {prompt + max_tokens} tokens"
    if prompt + max_tokens > cache_config.context_length:
        raise RequestError(f"{total}: at most {cache_config.context_length} ({cache_config.context_setting})")
    needed = pages_needed(call, prompt, cache_config)
    if needed.host > cache_config.host_pages:
        raise RequestError(
            f"{total}: the host's pool holds {cache_config.host_pages * cache_config.page_size} (HOST_KV_BYTES)"
        )
    if needed.device > cache_config.device_pages:
        capacity = cache_config.device_pages * cache_config.page_size
        hint = "" if call.params.sparse else " and parameter 'sparse' is false"
        raise RequestError(f"{total}{hint}: the device's pool holds {capacity} (DEVICE_KV_BYTES)")
    if needed.staging > cache_config.staging_pages:
        capacity = cache_config.staging_pages * STAGING_PAGE_SIZE
        raise RequestError(f"the prompt has {prompt} tokens: at most {capacity} can be prefilled")


class BlockManager:
    """Allocates pages of all pools, and indices into the per-sequence tables."""

    def __init__(self, cache_config: CacheConfig) -> None:
        self.seq_indices = BlockPool(cache_config.max_sequences)
        self.host = BlockPool(cache_config.host_pages)
        self.device = BlockPool(cache_config.device_pages)
        self.staging = BlockPool(cache_config.staging_pages)

    def can_allocate(self, needed: PagesNeeded, preempting: Sequence | None = None) -> bool:
        """Whether all that is needed is free, or would be if the sequence `preempting` were preempted."""
        indices, device = (1, len(preempting.device_pages)) if preempting else (0, 0)
        return (
            self.seq_indices.num_free + indices >= 1
            and needed.host <= self.host.num_free
            and needed.device <= self.device.num_free + device
            and needed.staging <= self.staging.num_free
        )

    def allocate(self, sequence: Sequence, needed: PagesNeeded) -> None:
        """Give a sequence all that it needs. A preempted one still has its host pages: it needs 0 of them."""
        sequence.seq_index = int(self.seq_indices.allocate(1)[0])
        if needed.host:
            sequence.host_pages = self.host.allocate(needed.host)
        sequence.device_pages = self.device.allocate(needed.device)
        sequence.staging_pages = self.staging.allocate(needed.staging)

    def free_staging(self, sequence: Sequence) -> None:
        """Free a sequence's staging pages."""
        self.staging.free(sequence.staging_pages)
        sequence.staging_pages = NO_PAGES

    def free(self, sequence: Sequence, keep_host: bool) -> Release:
        """Free everything that a sequence holds, except its host pages if it is only preempted (`keep_host`)."""
        release = Release(
            sequence.seq_index, NO_PAGES if keep_host else sequence.host_pages, sequence.device_pages
        )
        self.free_staging(sequence)
        self.host.free(release.host)
        self.device.free(release.device)
        if sequence.seq_index >= 0:
            self.seq_indices.free(np.array([sequence.seq_index], np.int32))
        sequence.seq_index, sequence.device_pages = -1, NO_PAGES
        if not keep_host:
            sequence.host_pages = NO_PAGES
        return release
