"""Sizes of the KV cache: pages of each pool, from the settings, the checkpoint and the available memory."""

import logging
from bisect import bisect_left
from dataclasses import dataclass, replace

import torch

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.kv_cache.buffer_pages import ring_pages
from hiscore.decoding.kv_cache.shape import CacheShape, newest_selected
from hiscore.decoding.memory.model_shape import ModelShape, caches_prefixes, dense_layers_of, prompt_pool
from hiscore.decoding.sparse.selectors import SELECTORS
from hiscore.prefill.row_counts import most_rows
from hiscore.recurrence.metadata import CHUNK, FIRST_SEQUENCE_SLOT
from hiscore.settings import CacheSettings

log = logging.getLogger(__name__)

CONTEXT_PAGE = 256
"""A context that does not fit in memory is cut to a multiple of this many tokens."""
BLOCK = 32
"""Tokens of a block of the host pool. A multiple of the tokens that the prefill's attention reads at a time."""
SPILLED_SHARE = 0.25
"""Share of the device's memory under SELECTOR=auto for dense layers and index; more if one sequence needs it."""
WINDOW_SHARE = 0.5
"""Largest share of what staging leaves for layers that keep a window only, where there are others."""
STATE_SHARE = 0.25
"""Largest share of what staging leaves for states of recurrent layers beyond one for each stream."""
STATES_PER_STREAM = 4
"""Most states per stream: sequences that are preempted keep theirs, and snapshots of prompts take what is left."""
WINDOWS_PER_STREAM = 4
"""Most windows per stream: sequences that are preempted keep theirs, and would start over without them."""
SHORTEST = 512
"""Pools that cannot hold one sequence of so many tokens, or of the context if that is less, are refused."""


@dataclass(frozen=True)
class MemoryBudget:
    """Memory to divide; the device's is for staging, dense layers, buffers, index and residency tables."""

    host_bytes: int
    device_bytes: int
    max_sequences: int


def plan_cache(
    settings: CacheSettings,
    model: ModelShape,
    memory: MemoryBudget,
    dtype: torch.dtype,
    prefill_token_budget: int,
) -> tuple[CacheShape, CacheConfig]:
    """Divide the memory among the pools.

    If MAX_CONTEXT is not set, the context is cut where the device has no room for one sequence of that length.

    Raises:
        ValueError: A pool is too small for one sequence: of MAX_CONTEXT if that is set, else of `SHORTEST`. The
            message names the setting and what it needs.
    """

    def plan(context: int) -> tuple[CacheShape, CacheConfig]:
        least = context if settings.max_context else min(SHORTEST, model.context_length)
        shorter = replace(model, context_length=min(context, model.context_length))
        return _plan(settings, shorter, memory, dtype, prefill_token_budget, least)

    def too_long(context: int) -> bool:
        try:
            plan(context)
        except ValueError:
            return True
        return False

    if settings.max_context or not too_long(model.context_length):
        return plan(model.context_length)
    shortest = min(SHORTEST, model.context_length)
    longer = range(shortest + CONTEXT_PAGE, model.context_length, CONTEXT_PAGE)
    shape, cache_config = plan([shortest, *longer][bisect_left(longer, True, key=too_long)])
    log.warning(
        "DEVICE_KV_BYTES (%d) has room for sequences of %d tokens, MAX_CONTEXT would be %d: longer ones fail",
        memory.device_bytes, cache_config.context_length, model.context_length,
    )  # fmt: skip
    return shape, replace(cache_config, context_setting="DEVICE_KV_BYTES")


def _plan(
    settings: CacheSettings,
    model: ModelShape,
    memory: MemoryBudget,
    dtype: torch.dtype,
    prefill_token_budget: int,
    least_tokens: int,
) -> tuple[CacheShape, CacheConfig]:
    minimal = _minimal_shape(settings, model, memory.max_sequences, prefill_token_budget)
    max_pages, bytes_of = minimal.max_pages, minimal.bytes(dtype)
    # What a page of either pool takes on the device.
    per_host_page = bytes_of["dense_kv"] + bytes_of["index"] + bytes_of["device_page_of"]
    per_device_page = bytes_of["buffer"] + bytes_of["host_page_of"] + bytes_of["last_use"]
    per_window_page = bytes_of["window_kv"] // max(1, minimal.window_slots) * minimal.page_size
    # For a prompt of the whole context, if it does not keep the pages that it is prefilled into.
    staging_pages = -(-model.context_length // STAGING_PAGE_SIZE) if minimal.prompts_in == "staging" else 0
    reserved_pages = max_pages if minimal.prompts_in == "buffers" else 0
    staging_bytes = minimal.staging_bytes(staging_pages, dtype) + reserved_pages * per_device_page
    staging_bytes += bytes_of["window_kv"] - minimal.window_pages * per_window_page
    free = memory.device_bytes - staging_bytes
    buffer_pages = min(max_pages, minimal.buffer_pages) if minimal.sparse_layers else 0
    longest = max_pages * per_host_page + buffer_pages * per_device_page
    state_bytes, streams = model.state_bytes(dtype.itemsize), memory.max_sequences
    least_states = FIRST_SEQUENCE_SLOT + streams
    ranks = model.host_share.ranks
    host_needed = -(-least_tokens // (minimal.page_size * ranks)) * bytes_of["host_kv"]
    of_windows = minimal.window_ring * per_window_page
    _check_memory("HOST_KV_BYTES", memory.host_bytes, host_needed, least_tokens)
    _check_memory(
        "DEVICE_KV_BYTES", memory.device_bytes, staging_bytes + longest + of_windows + least_states * state_bytes,
        model.context_length, f" and {least_states} states of {state_bytes} bytes" if state_bytes else "",
    )  # fmt: skip
    state_slots = 0
    if state_bytes:
        fitting = int(min(STATE_SHARE * free, free - longest)) // state_bytes - FIRST_SEQUENCE_SLOT
        state_slots = max(streams, min(STATES_PER_STREAM * streams, fitting))
        free -= (FIRST_SEQUENCE_SLOT + state_slots) * state_bytes
    window_pages = 0
    if of_windows:
        most = min(WINDOW_SHARE * free, free - longest) if longest else free
        window_pages = min(
            WINDOWS_PER_STREAM * memory.max_sequences * minimal.window_ring,
            int(max(of_windows, most)) // per_window_page,
        )
        window_pages -= window_pages % (max(BLOCK, minimal.page_size) // minimal.page_size)
        free -= window_pages * per_window_page
    # As many host pages as long sequences fit the device, with all that each of them needs there.
    all_pages = memory.max_sequences * max_pages
    fitting = int(free * max_pages // longest) if longest else all_pages
    if settings.selector == "auto" and per_host_page:
        # Most of the memory is for sequences that are on the device as a whole.
        fitting = max(max_pages, min(fitting, int(SPILLED_SHARE * free) // per_host_page))
    on_host = memory.host_bytes // bytes_of["host_kv"] * ranks if bytes_of["host_kv"] else all_pages
    host_pages = min(on_host, all_pages, fitting)
    free -= host_pages * per_host_page
    device_pages = min(free // per_device_page, all_pages) + reserved_pages if buffer_pages else 0
    shape = replace(
        minimal, host_pages=host_pages, device_pages=device_pages, window_pages=window_pages,
        host_share=model.host_share,
    )  # fmt: skip
    cache_config = CacheConfig(
        page_size=shape.page_size, lru_pages=shape.lru_pages, ring_pages=shape.ring_pages,
        host_pages=host_pages, device_pages=device_pages,
        staging_pages=staging_pages, max_sequences=memory.max_sequences,
        prefill_token_budget=prefill_token_budget, context_length=model.context_length,
        context_setting=model.context_setting,
        dense=not shape.sparse_layers, resident_if_it_fits=settings.selector == "auto",
        host_setting="DEVICE_KV_BYTES" if fitting < on_host else "HOST_KV_BYTES",
        block_size=max(CHUNK if state_bytes else BLOCK, shape.page_size),
        prefix_cache=caches_prefixes(settings, model)[0],
        prompts_in=shape.prompts_in, reserved_pages=reserved_pages, host_is_shared=ranks > 1,
        window_pages=window_pages, window_ring=shape.window_ring, window=model.longest_window,
        state_slots=state_slots,
    )  # fmt: skip
    return shape, cache_config


def _minimal_shape(
    settings: CacheSettings, model: ModelShape, max_sequences: int, prefill_token_budget: int
) -> CacheShape:
    """Make the shape with one page in each pool, and one sequence's pages of windowed layers."""
    selector = SELECTORS[settings.selector]
    page_size = selector.page_size
    max_pages = -(-model.context_length // page_size)
    ring = ring_pages(settings.backup_ring, page_size)
    top_k = settings.sparse_top_k if model.top_k is None else min(settings.sparse_top_k, model.top_k)
    always_selected = 1 + newest_selected(selector.index_kind, ring)
    top = max(min(top_k // page_size, max_pages), always_selected)
    window_ring = _ring_pages(model.longest_window, page_size, max_pages)
    # More than the longest sequence has pages are of no use.
    lru = max(min(settings.device_buffer_size // page_size - ring, max_pages), top)
    return CacheShape(
        layers=len(model.windows), kv_heads=model.kv_heads, kv_parts=model.kv_parts, head_dim=model.head_dim,
        page_size=page_size, max_sequences=max_sequences, max_pages=max_pages, host_pages=1, device_pages=1,
        lru_pages=lru, ring_pages=ring, top_pages=top, dense_layers=dense_layers_of(settings, model),
        windowed=model.windowed, recurrent=model.recurrent, window_pages=window_ring, window_ring=window_ring,
        prefill_rows=most_rows(prefill_token_budget),
        index_kind=selector.index_kind, index_dim=model.index_dim,
        sharing_layers=model.sharing_layers,
        prompts_in=prompt_pool(settings, model),
    )  # fmt: skip


def _ring_pages(window: int, page_size: int, max_pages: int) -> int:
    """Pages of a sequence in layers that keep a window only: whole blocks."""
    block = max(BLOCK, page_size)
    return min(-(-window // block), -(-max_pages * page_size // block)) * (block // page_size)


def _check_memory(name: str, given: int, needed: int, tokens: int, states: str = "") -> None:
    if given < needed:
        raise ValueError(
            f"{name} is {given} bytes, at least {needed} are needed for one sequence of {tokens} tokens{states}: "
            f"raise it, or lower MAX_CONTEXT{' or MAX_STREAMS' if states else ''}"
        )
