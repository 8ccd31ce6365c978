"""Contents of decode's pools, logged at the start, with a warning where fewer sequences fit than may run."""

import logging
from dataclasses import dataclass

import torch

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.server.plan import gib

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pool:
    """A pool sized by `setting`, for `sequences` of the whole context at once; one at a time if not shared."""

    name: str
    bytes: int
    tokens: int
    sequences: int
    setting: str
    is_shared: bool = True


def pools_of(shape: CacheShape, config: CacheConfig, dtype: torch.dtype) -> list[Pool]:
    """List the pools that hold anything."""
    sizes, max_pages = shape.bytes(dtype), shape.max_pages
    on_host = config.host_pages // max_pages
    host_tokens, device_tokens = config.host_pages * config.page_size, config.device_pages * config.page_size
    staging_tokens = config.staging_pages * STAGING_PAGE_SIZE
    buffers = config.kept_pages // min(max_pages, shape.buffer_pages)
    pools = [
        Pool("host", sizes["host_kv"], host_tokens, on_host, config.host_setting),
        Pool("device buffers", sizes["buffer"], device_tokens, buffers, "DEVICE_KV_BYTES"),
        # Every page of the host has its place in these.
        Pool("dense layers", sizes["dense_kv"], host_tokens, on_host, config.host_setting),
        Pool(
            "windows", sizes["window_kv"], config.window_pages * config.page_size,
            config.window_pages // max(1, config.window_ring), "DEVICE_KV_BYTES",
        ),
        Pool("index", sizes["index"], host_tokens, on_host, config.host_setting),
        Pool(
            "staging", shape.staging_bytes(config.staging_pages, dtype), staging_tokens,
            staging_tokens // config.context_length, "MAX_CONTEXT", is_shared=False,
        ),
    ]  # fmt: skip
    return [pool for pool in pools if pool.bytes]


def report_pools(shape: CacheShape, cache_config: CacheConfig, dtype: torch.dtype) -> None:
    """Log bytes, tokens and sequences of each pool, and warn where one holds fewer sequences than may run."""
    pools = pools_of(shape, cache_config, dtype)
    streams, context = cache_config.max_sequences, cache_config.context_length
    rows = [
        f"  {pool.name:<14} {gib(pool.bytes):>11}  {pool.tokens:>9} tokens  {pool.sequences:>5} sequences  "
        f"{pool.setting}"
        for pool in pools
    ]
    log.info(
        "pools of decode, for at most %d sequences of at most %d tokens:\n%s",
        streams,
        context,
        "\n".join(rows),
    )
    if cache_config.state_slots:
        log.info(
            "%d states of recurrent layers: one for each of %d sequences, the others for preempted sequences and "
            "for prompts that begin alike",
            cache_config.state_slots, streams,
        )  # fmt: skip
    if shape.host_share.ranks > 1:
        log.info(
            "%d ranks share the host's pages: its bytes are of one rank, its tokens of all of them",
            shape.host_share.ranks,
        )
    if cache_config.resident_if_it_fits and not cache_config.dense:
        log.info(
            "%d sequences of %d tokens fit the device as a whole; of others it has a buffer of %d tokens each",
            cache_config.device_pages // shape.max_pages, context, shape.buffer_pages * shape.page_size,
        )  # fmt: skip
    short = [pool for pool in pools if pool.is_shared and pool.sequences < streams]
    for setting in dict.fromkeys(pool.setting for pool in short):
        too_small = [pool for pool in short if pool.setting == setting]
        log.warning(
            "%s has room for %d sequences of %d tokens at once (%s), fewer than the %d of MAX_STREAMS: raise it, "
            "or lower MAX_CONTEXT or MAX_STREAMS",
            setting, min(pool.sequences for pool in too_small), context,
            ", ".join(pool.name for pool in too_small), streams,
        )  # fmt: skip
