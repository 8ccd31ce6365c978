"""Needs of a sequence in every pool, and the check that they could ever be met."""

from dataclasses import replace
from operator import add
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import RequestError


class PagesNeeded(NamedTuple):
    """Blocks of the host pool and of windows, slots of states, and pages of the other pools.

    A sequence also needs one index.

    Attributes:
        staging: Pages to prefill into beside these: of a pool of their own, or of the device's.
        kept: Part of `device` that a sequence holds even when it is spilled.
    """

    host: int
    device: int
    staging: int
    kept: int = 0
    window: int = 0
    state: int = 0

    def __add__(self, other: "PagesNeeded") -> "PagesNeeded":  # type: ignore[override]
        return PagesNeeded(*map(add, self, other))


NOTHING = PagesNeeded(0, 0, 0)


def pages_needed(
    call: DecodeCall,
    tokens: int,
    cache_config: CacheConfig,
    resident: bool = False,
    staged: int | None = None,
) -> PagesNeeded:
    """Count what a sequence of so many tokens holds: room for these and the next, staging for `staged` or all."""
    blocks = tokens // cache_config.block_tokens + 1
    pages = min(blocks * cache_config.block_pages, cache_config.max_pages)
    device = device_pages_of(pages, call, cache_config, resident)
    staging = staging_pages_of(tokens if staged is None else staged, device == pages, cache_config)
    return PagesNeeded(
        blocks,
        device,
        staging,
        kept_pages_of(device, call, cache_config),
        min(blocks, cache_config.window_ring // cache_config.block_pages),
        min(1, cache_config.state_slots),
    )


def device_pages_of(pages: int, call: DecodeCall, cache_config: CacheConfig, resident: bool = False) -> int:
    """Count the device pages of a sequence with so many pages on the host."""
    if cache_config.dense:
        return 0
    return min(pages, cache_config.buffer_pages) if call.params.sparse and not resident else pages


def kept_pages_of(device_pages: int, call: DecodeCall, cache_config: CacheConfig) -> int:
    """Count the device pages that a sequence would keep if it were spilled."""
    return min(device_pages, cache_config.buffer_pages) if call.params.sparse else device_pages


def staging_pages_of(tokens: int, is_resident: bool, cache_config: CacheConfig) -> int:
    """Count the pages that so many tokens are prefilled into, beside those that their sequence keeps."""
    if cache_config.prompts_in == "staging":
        return -(-tokens // STAGING_PAGE_SIZE)
    if cache_config.prompts_in == "dense" or is_resident:
        return 0
    return -(-tokens // cache_config.page_size)


def spilled_order(pages: int, device_pages: Int32, lru_pages: int, ring_pages: int) -> tuple[Int32, int]:
    """Number the device pages of a resident sequence anew, as LRU area and ring, before its next page begins.

    The first of the int32 device pages hold the sequence's `pages`, all full; the others nothing. Returns all of
    them in their new order, and how many first pages are in the LRU area.
    """
    # The next page takes its place in the ring.
    in_ring = np.arange(max(0, pages - ring_pages + 1), pages)
    spilled = min(lru_pages, pages - len(in_ring))
    order = np.full(lru_pages + ring_pages, -1, np.int32)
    order[:spilled] = device_pages[:spilled]
    order[lru_pages + in_ring % ring_pages] = device_pages[in_ring]
    order[order < 0] = device_pages[~np.isin(device_pages, order)]
    return order, spilled


def fill_max_tokens(call: DecodeCall, cache_config: CacheConfig) -> DecodeCall:
    """Give a call without `max_tokens` what its prompt leaves of the context and of the pools, at least 1."""
    if call.params.max_tokens:
        return call
    most = min(cache_config.context_length, *(tokens for tokens, _ in capacities(call, cache_config)))
    return replace(call, params=replace(call.params, max_tokens=max(1, most - len(call.prompt))))


def capacities(call: DecodeCall, cache_config: CacheConfig) -> list[tuple[int, str]]:
    """Return the tokens of a sequence that has each pool to itself, and the words on that pool for a refusal."""
    config = cache_config
    blocks = config.host_pages // config.block_pages
    host = (blocks * config.block_tokens, f"the host's pool holds {{}} ({config.host_setting})")
    device = (config.context_length, "")
    # A sparse one that is longer than its buffer needs no more of the device than that.
    if not config.dense and (not call.params.sparse or config.kept_pages < config.buffer_pages):
        hint = "" if call.params.sparse else " without selection, as parameter 'sparse' asks,"
        device = (
            config.kept_pages * config.page_size,
            f"the device's pool{hint} holds {{}} (DEVICE_KV_BYTES)",
        )
    return [host, device]


def check_fits(call: DecodeCall, cache_config: CacheConfig) -> None:
    """Refuse a call, by RequestError, for which the context or a pool is too small; the message says which."""
    prompt, max_tokens = len(call.prompt), call.params.max_tokens
    total = f"the prompt of {prompt} tokens and max_tokens {max_tokens} make {prompt + max_tokens} tokens"
    if prompt + max_tokens > cache_config.context_length:
        raise RequestError(f"{total}: at most {cache_config.context_length} ({cache_config.context_setting})")
    for tokens, what in capacities(call, cache_config):
        if prompt + max_tokens > tokens:
            raise RequestError(f"{total}: {what.format(tokens)}")
    if prompt > (most := cache_config.prompt_pages * STAGING_PAGE_SIZE):
        raise RequestError(f"the prompt has {prompt} tokens: at most {most} can be prefilled")
