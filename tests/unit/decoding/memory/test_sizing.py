"""How memory is divided: never more than there is, and so that sequences can use what each pool has."""

import math
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.memory.plan import state_lines
from hiscore.decoding.memory.sizing import (
    CONTEXT_PAGE,
    SHORTEST,
    MemoryBudget,
    plan_cache,
)
from hiscore.decoding.pools.page_needs import check_fits
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.decoding.sparse.selectors import SELECTORS
from hiscore.parallel.shard import Shard
from hiscore.recurrence.gated_delta_net import RecurrentShape
from hiscore.settings import CacheSettings, Selector

MIB = 2**20
SMALL = ModelShape(kv_heads=2, kv_parts=2, head_dim=16, windows=(None,) * 4, context_length=4_096)
STATE = RecurrentShape(key_heads=2, value_heads=2, key_dim=8, value_dim=8, taps=4)
HYBRID = replace(SMALL, recurrent=frozenset({0, 2, 3}), recurrence=STATE)
LATENTS = ModelShape(1, 1, 576, (None,) * 8, 32_768, index_dim=128, top_k=2_048)


def plan(
    memory: MemoryBudget,
    model: ModelShape = SMALL,
    dtype: torch.dtype = torch.float32,
    rows: int = 256,
    **settings: Any,
) -> tuple[CacheShape, CacheConfig]:
    return plan_cache(CacheSettings(**{"selector": "quest", **settings}), model, memory, dtype, rows)


@given(
    selector=st.sampled_from(["dense", "quest"]),
    host=st.integers(1, 2_000),
    device=st.integers(1, 2_000),
    streams=st.integers(1, 40),
    top_k=st.integers(1, 5_000),
    more=st.integers(0, 5_000),
    context=st.integers(1, 50_000),
    windowed=st.integers(0, 4),
    recurrent=st.booleans(),
)
def test_pools_take_no_more_than_there_is(
    selector: str,
    host: int,
    device: int,
    streams: int,
    top_k: int,
    more: int,
    context: int,
    windowed: int,
    recurrent: bool,
) -> None:
    windowed = 0 if recurrent else windowed
    windows = (512,) * windowed + (None,) * (4 - windowed)
    model = ModelShape(2, 2, 16, windows, context)
    if recurrent:
        model = replace(HYBRID, context_length=context)
    settings = {"selector": selector, "sparse_top_k": top_k, "device_buffer_size": top_k + more}
    memory = MemoryBudget(host * MIB, device * MIB, streams)
    try:
        shape, cache_config = plan(memory, model, backup_ring=1, **settings)
    except ValueError:
        # With all of both there is always room.
        plan(MemoryBudget(2**50, 2**50, streams), model, backup_ring=1, **settings)
        return
    sizes = shape.bytes(torch.float32)
    flags = ("fully_resident", "full_attention", "hits", "misses", "mass")
    tables = sum(size for name, size in sizes.items() if name.endswith("_block_table") or name in flags)
    row = 4 * len(shape.host_layers) * prod((model.kv_parts, model.kv_heads, model.head_dim))
    staging = cache_config.staging_pages * STAGING_PAGE_SIZE * row
    assert sizes["host_kv"] <= memory.host_bytes
    states = sum(line.bytes for line in state_lines(model, cache_config, 4)[:1])
    assert sum(sizes.values()) - sizes["host_kv"] - tables + staging + states <= memory.device_bytes
    assert cache_config.state_slots >= streams or not recurrent
    if shape.sparse_layers:
        # As many long sequences fit in one pool as in the other.
        buffers = cache_config.device_pages // min(shape.max_pages, shape.buffer_pages)
        assert buffers >= cache_config.host_pages // shape.max_pages
        assert buffers >= 1
    if windowed:
        assert shape.window_pages >= shape.window_ring > 0


@pytest.mark.parametrize("top_k", [2, 8, 32])
def test_single_tokens_are_selected_as_many_as_were_asked_for(top_k: int) -> None:
    """An indexer selects by its checkpoint's top-k: the ring makes no difference."""
    indexed = replace(SMALL, kv_heads=1, kv_parts=1, index_dim=8, top_k=top_k)
    settings = {"selector": "dsa", "sparse_top_k": 64, "device_buffer_size": 64, "backup_ring": top_k}
    shape, _ = plan(MemoryBudget(2**30, 2**30, 4), indexed, **settings)
    assert shape.top_pages == top_k
    assert shape.lru_pages >= top_k


def test_only_layers_that_select_for_themselves_hold_an_index() -> None:
    """A 32k request of GLM-MoE-DSA's rows, where one layer in four has its own indexer."""
    shared, bytes_ = replace(LATENTS, sharing_layers=frozenset({1, 2, 3, 5, 6, 7})), {}
    for name, shape in {"own": LATENTS, "shared": shared}.items():
        planned, _ = plan(MemoryBudget(2**50, 2**50, 1), shape, torch.bfloat16, selector="dsa")
        bytes_[name] = replace(planned, host_pages=32_768, device_pages=4_096 + 4).bytes(torch.bfloat16)
        assert planned.indexed_layers == tuple(range(0, 8, 1 if name == "own" else 4))
    assert bytes_["shared"].pop("index") * 4 == bytes_["own"].pop("index") == 8 * 32_768 * 128 * 2
    assert bytes_["shared"] == bytes_["own"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_share_the_host_pool_have_room_for_more(ranks: int) -> None:
    """The same bytes on each hold the pages of all; the device's pools are those of one rank alone."""
    page = 8 * 576 * 2
    latents = partial(plan, dtype=torch.bfloat16, selector="dsa", max_context=32_768)
    memory = MemoryBudget(40_000 * page, 2**50, 64)
    alone, config = latents(memory, LATENTS)
    assert alone.host_pages == 40_000
    assert not config.host_is_shared
    for rank in range(ranks):
        shared = replace(LATENTS, host_share=Shard(rank, ranks))
        shape, config = latents(memory, shared)
        assert shape.host_pages == config.host_pages == 40_000 * ranks
        assert config.host_is_shared
        assert shape.bytes(torch.bfloat16)["host_kv"] == memory.host_bytes
        # One sequence needs a share on each rank, and no less.
        least = replace(memory, host_bytes=32_768 // ranks * page)
        latents(least, shared)
        with pytest.raises(ValueError, match="HOST_KV_BYTES"):
            latents(replace(least, host_bytes=least.host_bytes - 1), shared)


def test_a_buffer_is_no_longer_than_a_stream() -> None:
    """Tables and scratch have an entry for each page of a buffer, whether a sequence can use it or not."""
    planned = [plan(MemoryBudget(2**40, 2**40, 4), device_buffer_size=size) for size in (4_096, 10**9)]
    for shape, _ in planned:
        assert shape.lru_pages <= shape.max_pages <= shape.buffer_pages  # all of the longest sequence fits
    small, large = (sum(shape.bytes(torch.float32).values()) for shape, _ in planned)
    assert large < 1.01 * small


@pytest.mark.parametrize(
    ("asked", "ring", "top", "buffer"),
    [
        ({"sparse_top_k": 256, "device_buffer_size": 1_024, "backup_ring": 33}, 2, 8, 32),
        ({"sparse_top_k": 256, "device_buffer_size": 1_024, "backup_ring": 1}, 1, 8, 32),
        # The first page and the newest have room regardless of the setting.
        ({"sparse_top_k": 1, "device_buffer_size": 1_024, "backup_ring": 1}, 1, 2, 32),
    ],
)
def test_a_buffer_holds_ring_and_lru_pages(asked: dict[str, int], ring: int, top: int, buffer: int) -> None:
    shape, cache_config = plan(MemoryBudget(2**30, 2**30, 4), **asked)
    assert (shape.ring_pages, shape.top_pages, shape.buffer_pages) == (ring, top, buffer)
    assert (cache_config.ring_pages, cache_config.lru_pages) == (ring, buffer - ring)


def test_fewer_dense_layers_leave_room_for_larger_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four layers has a window: it is whole on the device anyway."""
    model = ModelShape(2, 2, 16, (None, None, None, 128), 8_192)
    longest = []
    for layers, dense in ((0, {3}), (1, {0, 3}), (2, {0, 1, 3}), (3, {0, 1, 2, 3}), (9, {0, 1, 2, 3})):
        monkeypatch.setitem(SELECTORS, "quest", replace(SELECTORS["quest"], dense_layers=layers))
        shape, cache_config = plan(MemoryBudget(MIB * 64, MIB * 24, 8), model, sparse_top_k=256)
        assert shape.dense_layers == dense
        assert cache_config.dense == (len(dense) == 4)
        longest.append(cache_config.host_pages)
    assert longest[0] > longest[1] > longest[2]
    # Where all layers are dense there is no staging pool.
    assert longest[3] == longest[4]
    # Of quest alone.
    indexed = replace(model, kv_heads=1, kv_parts=1, index_dim=8)
    shape, _ = plan(MemoryBudget(MIB * 64, MIB * 64, 1), indexed, selector="dsa", rows=1)
    assert shape.dense_layers == {3}


# Gemma 3 12B: five layers with a window, then one without.
GEMMA_3_12B = ModelShape(8, 2, 256, tuple(None if layer % 6 == 5 else 1_024 for layer in range(48)), 32_768)
GIB = 2**30


@pytest.mark.parametrize(
    ("selector", "device", "held", "windows"),
    [
        ("dense", 6, 38_944, 7),
        ("dense", 18, 137_312, 26),
        ("quest", 6, 18_080, 4),
        ("quest", 18, 100_256, 23),
        ("auto", 6, 50_848, 4),
        ("auto", 18, 133_024, 23),
    ],
)
def test_layers_with_a_window_keep_no_more(selector: str, device: int, held: int, windows: int) -> None:
    """Gemma 3 12B with 6 GiB (about a quarter of a GPU of 24 GB) or 18 GiB (80 GB), and 40 GiB of the host.

    held: tokens of the dense layers or of the buffers.
    """
    memory = MemoryBudget(40 * GIB, device * GIB, 64)
    shape, cache_config = plan(memory, GEMMA_3_12B, torch.bfloat16, 4_096, selector=selector)
    assert cache_config.context_length == 32_768
    assert (shape.host_pages if selector == "dense" else shape.device_pages) * shape.page_size == held
    sizes = shape.bytes(torch.bfloat16)
    # 4 KiB for a key, and as much for a value, in each layer.
    assert sizes["host_kv"] == shape.host_pages * shape.page_size * 8 * 8 * 1_024
    assert sizes["dense_kv"] == (sizes["host_kv"] if selector == "dense" else 0)
    # 1,024 tokens of each sequence in 40 layers, and those of a prefill.
    assert shape.window_pages // shape.window_ring == windows
    assert sizes["window_kv"] == (shape.window_pages * 32 + 4_096) * 40 * 8 * 1_024
    # Prompts are prefilled where they stay; else in a pool for layers without a window.
    staging = cache_config.staging_pages * STAGING_PAGE_SIZE
    assert staging == (32_768 if selector == "quest" else 0)
    assert shape.staging_bytes(1, torch.bfloat16) == STAGING_PAGE_SIZE * 8 * 8 * 1_024


@pytest.mark.parametrize("selector", ["auto", "dense", "quest"])
def test_without_windows_a_prefix_cache_is_on_and_takes_no_memory(selector: Selector) -> None:
    """The pools are the same. The control: with windows it is off."""
    memory, windows = MemoryBudget(MIB * 64, MIB * 64, 4), replace(SMALL, windows=(None, 64) * 2)
    on, off, auto, *with_windows = (
        plan(memory, model, selector=selector, prefix_cache=prefix_cache)
        for model in (SMALL, windows)
        for prefix_cache in (True, False, "auto")
    )
    assert auto == on
    assert on[0] == off[0]
    assert on[1] == replace(off[1], prefix_cache=True) != off[1]
    assert with_windows == [with_windows[0]] * 3


def test_windows_longer_than_the_context_take_no_more_than_it() -> None:
    model = ModelShape(2, 2, 16, (4_096, None) * 2, 1_000)
    shape, _ = plan(MemoryBudget(MIB * 64, MIB * 64, 4), model, rows=1)
    assert shape.window_ring == shape.max_pages == 32
    # Of four sequences, and of those that are preempted for them.
    assert shape.window_pages == 4 * 4 * 32


def test_a_model_whose_layers_all_have_windows_needs_no_buffer() -> None:
    model = ModelShape(2, 2, 16, (128,) * 4, 4_096)
    _, cache_config = plan(MemoryBudget(0, MIB * 64, 4), model, rows=1)
    assert cache_config.dense
    assert cache_config.device_pages == 0


@pytest.mark.parametrize(
    ("memory", "named"),
    [
        (MemoryBudget(1_000, 2**30, 4), "HOST_KV_BYTES is 1000 bytes, at least"),
        (MemoryBudget(2**30, 1_000, 4), "DEVICE_KV_BYTES"),
    ],
)
def test_what_is_too_small_is_named(memory: MemoryBudget, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        plan(memory)


@pytest.mark.parametrize("of", [SMALL, HYBRID], ids=["attention", "with states"])
@pytest.mark.parametrize("selector", ["quest", "dense"])
@pytest.mark.parametrize(("max_context", "tokens"), [(None, 512), (1_000, 1_000)])
@pytest.mark.parametrize("pool", ["HOST_KV_BYTES", "DEVICE_KV_BYTES"])
def test_just_the_bytes_that_are_asked_for_are_enough_for_one_sequence(
    pool: str, max_context: int | None, tokens: int, selector: str, of: ModelShape
) -> None:
    """Dense took a device pool of 160 tokens for 32 sequences."""
    model = replace(of, context_length=max_context or of.context_length)

    def planned_with(size: int) -> CacheConfig:
        host, device = (size, 2**30) if pool == "HOST_KV_BYTES" else (2**30, size)
        return plan(MemoryBudget(host, device, 32), model, selector=selector, max_context=max_context)[1]

    with pytest.raises(ValueError, match=f"one sequence of {tokens} tokens") as refused:
        planned_with(1)
    assert pool in str(refused.value)
    of_each = 3 * 4 * (2 * 8 * 8 + 3 * 48)
    states = f"and 37 states of {of_each} bytes: raise it, or lower MAX_CONTEXT or MAX_STREAMS"
    assert (states in str(refused.value)) is (of is HYBRID and pool == "DEVICE_KV_BYTES")
    needed = int(str(refused.value).split("at least ")[1].split()[0])
    planned = planned_with(needed)
    params = SamplingParams(max_tokens=9)
    check_fits(DecodeCall(np.zeros(tokens - 9, np.int32), params, math.inf, math.inf), planned)
    with pytest.raises(ValueError, match=f"{pool} is .* at least {needed} are needed"):
        planned_with(needed - 1)


def test_an_indexers_keys_in_staging_count() -> None:
    model, dtype = replace(LATENTS, sharing_layers=frozenset({1, 2})), torch.bfloat16
    shape, config = plan(MemoryBudget(2**40, 2**40, 1), model, dtype, selector="dsa", max_context=32_768)
    least = shape.staging_bytes(config.staging_pages, dtype)
    assert least == 32_768 * (8 * 576 + 6 * 128) * 2
    with pytest.raises(ValueError, match="DEVICE_KV_BYTES"):
        plan(MemoryBudget(2**40, least, 1), model, dtype, selector="dsa", max_context=32_768)


def test_streams_are_shorter_where_memory_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """A context that does not fit is no error: it is cut to the longest that fits."""
    model = replace(SMALL, context_length=100_000)
    held = [context(model, MIB * size) for size in (8, 32, 64, 1024)]
    assert held == sorted(set(held))
    assert held[0] >= SHORTEST
    assert held[-1] == model.context_length
    assert len(caplog.records) == 3
    assert f"room for sequences of {held[0]} tokens, MAX_CONTEXT would be 100000" in caplog.text
    # One more page of tokens does not fit, as a model with exactly that context shows.
    longer = replace(model, context_length=held[1] + CONTEXT_PAGE)
    assert context(longer, MIB * 32) == held[1]


def context(model: ModelShape, device: int) -> int:
    memory = MemoryBudget(2**40, device, 1)
    _, cache_config = plan(memory, model, sparse_top_k=256, device_buffer_size=512)
    assert cache_config.staging_pages * STAGING_PAGE_SIZE >= cache_config.context_length
    return cache_config.context_length
