"""How large the cache is: settings, a checkpoint's shape and the memory at hand to pages of each pool."""

import logging
from bisect import bisect_left
from dataclasses import dataclass, replace
from math import prod

import torch

from hiscore.decoding.kv_cache.cache import CacheShape, Index
from hiscore.decoding.worker.interface import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.worker.offload_schedule import ring_pages
from hiscore.settings import CacheSettings

log = logging.getLogger(__name__)

# Tokens of a page that is chosen as a whole. Larger pages make a smaller index and longer copies; smaller ones fit
# what is looked for more closely.
QUEST_PAGE = 32
# Streams that are held shorter than the context are so many tokens long, or a multiple.
CONTEXT_PAGE = 256
INDEX: dict[str, Index] = {"dense": "none", "exact": "keys", "quest": "bounds", "dsa": "dsa"}


@dataclass(frozen=True)
class ModelShape:
    """What a checkpoint's cache rows are like; see `CacheShape`. windows: of each layer, None for none."""

    heads: int
    parts: int
    width: int
    windows: tuple[int | None, ...]
    context_length: int
    index_width: int = 0
    top_k: int | None = None
    """What the checkpoint's own indexer selects."""
    sharing_layers: frozenset[int] = frozenset()
    """Layers that attend to what the checkpoint's indexer has selected for a layer before them."""


@dataclass(frozen=True)
class Memory:
    """Bytes for the pools of the host and of the device, and streams that are to run at once."""

    host: int
    device: int
    streams: int


def plan_cache(
    settings: CacheSettings, model: ModelShape, memory: Memory, dtype: torch.dtype, chunk: int
) -> tuple[CacheShape, CacheConfig]:
    """Divide the memory. Where it has no room for one stream of the model's context, streams are held shorter.

    Raises:
        ValueError: a pool cannot hold the shortest stream; the message names the setting and what it needs.
    """

    def plan(pages: int) -> tuple[CacheShape, CacheConfig]:
        context = min(pages * CONTEXT_PAGE, model.context_length)
        return _plan(settings, replace(model, context_length=context), memory, dtype, chunk)

    def too_long(pages: int) -> bool:
        try:
            plan(pages)
        except ValueError:
            return True
        return False

    whole = -(-model.context_length // CONTEXT_PAGE)
    pages = 1 + bisect_left(range(2, whole + 1), True, key=too_long) if too_long(whole) else whole
    shape, cache_config = plan(pages)
    if pages < whole:
        log.warning(
            "DEVICE_KV_BYTES (%d) has room for streams of %d tokens; the model's context is %d",
            memory.device, cache_config.context_length, model.context_length,
        )  # fmt: skip
    return shape, cache_config


def _plan(
    settings: CacheSettings, model: ModelShape, memory: Memory, dtype: torch.dtype, chunk: int
) -> tuple[CacheShape, CacheConfig]:
    selector = settings.selector
    page = QUEST_PAGE if selector in ("quest", "dense") else 1
    width = settings.backup_ring if settings.backup == "ring" else 1
    max_pages = -(-model.context_length // page)
    ring = ring_pages(width, page)
    top_k = settings.sparse_top_k if model.top_k is None else min(settings.sparse_top_k, model.top_k)
    # What is always selected: the first page and the ring's, or the first token and the newest.
    least = {"quest": ring + 1, "exact": 2}.get(selector, 1)
    top = max(min(top_k // page, max_pages), least)
    # No stream has use for more places than it has pages.
    lru = max(min(settings.device_buffer_size // page - ring, max_pages), top)
    of_one_page = CacheShape(
        layers=len(model.windows), heads=model.heads, parts=model.parts, width=model.width,
        page=page, streams=memory.streams, max_pages=max_pages, host_pages=1, device_pages=1,
        lru_pages=lru, ring_pages=ring, top_pages=top, dense_layers=_dense_layers(settings, model),
        index=INDEX[selector], index_width=model.index_width, sharing_layers=model.sharing_layers,
    )  # fmt: skip
    one = of_one_page.bytes(dtype)
    staging = -(-model.context_length // STAGING_PAGE_SIZE) * STAGING_PAGE_SIZE
    slot_bytes = len(model.windows) * prod((model.parts, model.heads, model.width)) * dtype.itemsize
    room = memory.device - staging * slot_bytes
    beside_host = one["dense_kv"] + one["index"] + one["device_page_of"]
    per_device_page = one["buffer"] + one["host_page_of"] + one["last_use"]
    buffer_pages = min(max_pages, lru + ring) if of_one_page.sparse_layers else 0
    # As many of the host's pages as there is room on the device for what belongs to them, if streams are long.
    long_stream = max_pages * beside_host + buffer_pages * per_device_page
    most = room * max_pages // long_stream if long_stream else memory.streams * max_pages
    host_pages = max(0, min(memory.host // one["host_kv"], memory.streams * max_pages, most))
    room -= host_pages * beside_host
    device_pages = min(room // per_device_page, memory.streams * max_pages) if buffer_pages else 0
    _check("HOST_KV_BYTES", memory.host, one["host_kv"], memory.host >= one["host_kv"])
    least = staging * slot_bytes + long_stream
    enough = host_pages >= 1 and device_pages >= buffer_pages
    _check("DEVICE_KV_BYTES", memory.device, least, enough)
    shape = replace(of_one_page, host_pages=host_pages, device_pages=device_pages)
    cache_config = CacheConfig(
        page_size=page, lru_pages=lru, ring_pages=ring, host_pages=host_pages, device_pages=device_pages,
        staging_pages=staging // STAGING_PAGE_SIZE, max_sequences=memory.streams,
        prefill_token_budget=chunk, context_length=model.context_length, dense=not shape.sparse_layers,
    )  # fmt: skip
    return shape, cache_config


def _dense_layers(settings: CacheSettings, model: ModelShape) -> frozenset[int]:
    """Under quest the first ones too: its bounds say little of layers that attend widely."""
    first = {"dense": len(model.windows), "quest": settings.quest_dense_layers}.get(settings.selector, 0)
    return frozenset(
        layer for layer, window in enumerate(model.windows) if layer < first or window is not None
    )


def _check(name: str, given: int, needed: int, enough: bool) -> None:
    if not enough:
        raise ValueError(f"{name} is {given} bytes, at least {needed} are needed for one stream")
