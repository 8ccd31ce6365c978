"""Copies to the host and back by kernels. Without a GPU they run in Triton's interpreter, on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse import triton_transfers
from hiscore.decoding.sparse.block_tables import slot_mapping
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.parallel.shard import Shard
from tests.support.decode_cache import KnownCache, unique_contents
from tests.support.decode_kernels import (
    DEVICE,
    SHAPE,
    assert_same,
    attention_shape,
    moved,
    on_device,
    rows_of,
)
from tests.support.shared_host import OneAfterTheOther, one_after_the_other
from tests.support.tiers import first_of

NEWEST = 5


# The dense layer has a copy on the host, or keeps its window on the device.
WINDOWED = replace(SHAPE, windowed=frozenset({1}), window_pages=12, window_ring=3, prefill_rows=8)
SHAPES = (SHAPE, WINDOWED)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_steps_tokens_reach_the_host_and_padding_writes_nothing(shape: CacheShape) -> None:
    known = KnownCache(shape, unique_contents(shape), NEWEST, dtype=torch.float32)
    for seq_index, length in ((0, 30), (3, 3), (5, 71)):
        assert known.admit(seq_index, length, length + 9)
    rows = known.rows([5, 0, 3], padding=2)
    known.write(rows)
    cache = on_device(known.cache)
    ops = TritonCacheOps(cache, attention_shape(shape, 1), 96)
    host_slots, buffer = slot_mapping(known.cache, rows)
    before = known.cache.host_kv.clone()
    ops.offload_step(host_slots.to(DEVICE), buffer.to(DEVICE))
    for seq_index, length in known.lengths.items():
        known._to_host(seq_index, torch.tensor([length]))
    assert_same(cache.host_kv, known.cache.host_kv)
    assert not torch.equal(before.nan_to_num(-1.0), known.cache.host_kv.nan_to_num(-1.0))


@pytest.mark.slow
@pytest.mark.parametrize("ring", [1, 2, 3])
def test_new_tokens_go_where_plain_torch_says(ring: int) -> None:
    """All positions of sequences that fit their buffers and of one that does not, with padding."""
    shape = replace(SHAPE, ring_pages=ring)
    known = KnownCache(shape, unique_contents(shape), NEWEST, dtype=torch.float32)
    capacities = {5: 4 * shape.buffer_pages, 0: 80, 3: 12}
    for seq_index, capacity in capacities.items():
        assert known.admit(seq_index, 2, capacity)
    assert known.cache.fully_resident.tolist() == [False, False, False, True, False, True]
    ops = TritonCacheOps(on_device(known.cache), attention_shape(shape, 1), 96)
    stale = on_device(known.cache)
    stale.fully_resident.fill_(False)
    wrong, told_apart = TritonCacheOps(stale, attention_shape(shape, 1), 96), False
    for position in range(80):
        seq_indices = [seq_index for seq_index, capacity in capacities.items() if position < capacity]
        rows = rows_of([-1, *seq_indices, -1], [0, *[position] * len(seq_indices), 0])
        expected = slot_mapping(known.cache, moved(rows, "cpu"))
        for actual, right in zip(ops.slot_mapping(rows), expected, strict=True):
            assert_same(actual, right)
        # The control: without knowing which buffers hold their whole sequence.
        told_apart |= not torch.equal(wrong.slot_mapping(rows)[1].cpu(), expected[1])
    assert told_apart


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at_once", first_of(2, 1, 64, others=pytest.mark.slow))
@pytest.mark.parametrize("length", first_of(27, 1, 7, 8, 9, others=pytest.mark.slow))
def test_a_prompt_goes_to_the_host_dense_layers_and_buffer_and_back(
    length: int, at_once: int, shape: CacheShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """at_once: pages of 4 tokens that a program copies at a time."""
    monkeypatch.setattr(triton_transfers, "SHORT_OFFLOAD_TOKENS", 8)
    cache = on_device(KVCache.allocate(shape, torch.float32, torch.device("cpu")))
    for tensor in (cache.host_kv, cache.dense_kv, cache.buffer):
        tensor.fill_(-1.0)
    ops = TritonCacheOps(cache, attention_shape(shape, 1), 96)
    elements = at_once * SHAPE.kv_parts * SHAPE.page_size * ops._padded // 2
    monkeypatch.setattr(triton_transfers, "COPY_ELEMENTS", elements)
    assert ops._copy_launch(2 * elements)[0] == at_once
    layers = len(shape.host_layers)
    staging = torch.arange(layers * 512, dtype=torch.float32, device=DEVICE).view(layers, 32, 2, 2, 4)
    rng = np.random.default_rng(length)
    slots = torch.from_numpy(rng.permutation(32)[:length]).int().to(DEVICE)
    pages = torch.from_numpy(rng.permutation(80)[: -(-length // 4)]).int().to(DEVICE)
    each = torch.arange(length, device=DEVICE)
    host_slots = pages.long()[each // 4] * 4 + each % 4
    ops.offload_prompt(staging, slots, pages)
    ops.fill_dense(staging, slots, host_slots.int())
    ops.fill_buffer(staging, slots, (host_slots % 48).int())

    plain = KVCache.allocate(shape, torch.float32, torch.device("cpu"))
    for tensor in (plain.host_kv, plain.dense_kv, plain.buffer):
        tensor.fill_(-1.0)
    reference = CacheOps(plain, attention_shape(shape, 1))
    reference.offload_prompt(staging.cpu(), slots.cpu(), pages.cpu())
    reference.fill_dense(staging.cpu(), slots.cpu(), host_slots.cpu())
    reference.fill_buffer(staging.cpu(), slots.cpu(), host_slots.cpu() % 48)
    for name in ("host_kv", "dense_kv", "buffer"):
        if name != "dense_kv" or plain.dense:
            assert_same(getattr(cache, name), getattr(plain, name))
            assert (getattr(plain, name) >= 0).any()

    other = torch.full_like(staging, -2.0)
    elsewhere = torch.from_numpy(rng.permutation(32)[:length]).int().to(DEVICE)
    ops.restore_prompt(other, elsewhere, pages)
    right = torch.full_like(staging, -2.0)
    right[:, elsewhere.long()] = staging[:, slots.long()]
    assert_same(other, right)


@pytest.mark.parametrize("dense", [0, 1, 2])
def test_dense_layers_come_back_to_staging(dense: int) -> None:
    """The first layers, as where prompts are prefilled in the buffers; the others keep what they have there."""
    shape = replace(SHAPE, dense_layers=frozenset(range(dense)))
    cache = on_device(KVCache.allocate(shape, torch.float32, torch.device("cpu")))
    cache.dense_kv.copy_(torch.randn(cache.dense_kv.shape))
    staging = torch.randn(shape.layers, 32, 2, 2, 4, device=DEVICE)
    right = staging.clone()
    slots, host_slots = (torch.randperm(32, device=DEVICE)[:9].int() for _ in range(2))
    TritonCacheOps(cache, attention_shape(shape, 1), 96).restore_dense(staging, slots, host_slots)
    for layer in range(dense):
        right[layer, slots.long()] = cache.dense_kv[layer, host_slots.long()]
    assert_same(staging, right)
    plain = torch.zeros_like(staging)
    CacheOps(cache, attention_shape(shape, 1)).restore_dense(plain, slots, host_slots)
    assert_same(plain[:dense, slots.long()], right[:dense, slots.long()])
    assert not plain[dense:].any()


def cache_of(rank: OneAfterTheOther, host: torch.Tensor) -> KVCache:
    """A rank's cache, with its share of what one rank alone would have on the host."""
    shape = replace(SHAPE, host_share=rank.shard)
    cache = KVCache.allocate(shape, torch.float32, torch.device("cpu"), rank)
    cache.host_kv.copy_(host[:, rank.shard.rank :: rank.shard.ranks])
    cache = on_device(cache)
    cache.sharers = rank
    return cache


@pytest.mark.parametrize(("ranks", "last"), [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_ranks_store_once_and_restore_all(ranks: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged in pieces of three tokens."""
    monkeypatch.setattr(triton_transfers, "MERGED_BYTES", 3 * 2 * 2 * 4 * 4)
    known = KnownCache(SHAPE, unique_contents(SHAPE), NEWEST, dtype=torch.float32)
    assert known.admit(2, 30, 40)
    rows = known.rows([2], padding=1)
    known.write(rows)
    host_slots, buffer = slot_mapping(known.cache, rows)
    rng = np.random.default_rng(ranks)
    staging = torch.arange(3 * 32 * 16, dtype=torch.float32, device=DEVICE).view(3, 32, 2, 2, 4)
    slots = torch.from_numpy(rng.permutation(32)[:27]).int().to(DEVICE)
    free = np.setdiff1d(np.arange(80), known.pages[2][0])
    pages = torch.from_numpy(rng.permutation(free)[:7]).int().to(DEVICE)
    before = known.cache.host_kv.clone()
    reference = CacheOps(known.cache, attention_shape(SHAPE, 1))
    reference.offload_step(host_slots, buffer)
    reference.offload_prompt(staging.cpu(), slots.cpu(), pages.cpu())
    expected = known.cache.host_kv
    for rank in one_after_the_other(ranks, last):
        cache = cache_of(rank, before)
        for name in ("buffer", "dense_kv"):
            getattr(cache, name).copy_(getattr(known.cache, name))
        ops = TritonCacheOps(cache, attention_shape(SHAPE, 1), 96)
        ops.offload_step(host_slots.to(DEVICE), buffer.to(DEVICE))
        ops.offload_prompt(staging, slots, pages)
        assert_same(cache.host_kv, expected[:, rank.shard.rank :: ranks])
        restored = torch.full_like(staging, -2.0)
        ops.restore_prompt(restored, slots, pages)
        right = torch.full_like(staging, -2.0)
        right[:, slots.long()] = staging[:, slots.long()]
        # The control: a rank that has got nothing from the others lacks what they store.
        assert torch.equal(restored, right) == (rank.shard.rank == last)
    assert len(cache.host_kv[0]) * ranks == SHAPE.host_pages or ranks == 3


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "last"), [(2, 0), (3, 2), (4, 1)])
def test_ranks_bring_each_other_the_pages_that_a_step_misses(ranks: int, last: int) -> None:
    """Lists of different lengths, one of them empty. A sum would change -0, and a NaN's other bits."""
    rng = np.random.default_rng(ranks)
    host = torch.from_numpy(rng.standard_normal((3, 80, 2, 2, 4, 4)).astype(np.float32))
    host[:, ::3, 0] = -0.0
    host.view(torch.int32)[:, 1::5, 1] = 0x7FC0_1234
    counts = torch.tensor([[5, 0], [1, 4], [2, 3]], dtype=torch.int32)
    swaps = np.full((3, 2, 8, 2), 10**6)
    device_pages = rng.permutation(48)
    for number, (row, head) in enumerate(np.ndindex(3, 2)):
        count = int(counts[row, head])
        swaps[row, head, :count, 0] = rng.permutation(80)[:count]
        swaps[row, head, :count, 1] = device_pages[8 * number : 8 * number + count]
    right = torch.full((192, 2, 2, 4), -7.0)
    for row, head in np.ndindex(3, 2):
        for source, target in swaps[row, head, : counts[row, head]]:
            right[4 * target : 4 * target + 4, :, head] = host[2, source, head].transpose(0, 1)
    listed = torch.from_numpy(swaps).int().to(DEVICE)
    for rank in one_after_the_other(ranks, last):
        cache = cache_of(rank, host)
        cache.buffer.fill_(-7.0)
        TritonCacheOps(cache, attention_shape(SHAPE, 1), 96)._swap_in(2, listed, counts.to(DEVICE))
        given = cache.buffer[cache.sparse[2]].cpu()
        if rank.shard.rank == last:
            assert_same(given, right)
        else:
            assert not torch.equal(given.view(torch.int32), right.view(torch.int32))
        assert not (cache.buffer[cache.sparse[0]] != -7.0).any()


def test_a_cache_shared_by_other_ranks_than_those_that_decode_is_refused() -> None:
    shape = replace(SHAPE, host_share=Shard(1, 2))
    for group in (None, OneAfterTheOther(Shard(0, 2)), OneAfterTheOther(Shard(1, 4))):
        with pytest.raises(ValueError, match="host_share is Shard"):
            KVCache.allocate(shape, torch.float32, torch.device("cpu"), group)


def test_windows_take_new_tokens_and_what_a_prefill_leaves_behind_the_pages() -> None:
    cache = KVCache.allocate(WINDOWED, torch.float32, torch.device("cpu"))
    cache.window_kv.copy_(torch.arange(cache.window_kv.numel()).view_as(cache.window_kv))
    table = np.random.default_rng(0).permutation(12)[:6].reshape(2, 3)
    for seq_index, pages in ((4, table[0]), (1, table[1])):
        cache.window_block_table[seq_index] = torch.from_numpy(pages[np.arange(24) % 3])
    other = on_device(cache)
    ops, reference = (
        make(each, attention_shape(WINDOWED, 1), *more)
        for make, each, more in ((TritonCacheOps, other, (96,)), (CacheOps, cache, ()))
    )
    for position in (0, 3, 4, 12, 13, 95):
        rows = rows_of([1, -1, 4], [position, 0, 95 - position])
        found, _ = ops.slot_mapping(rows, other.window_block_table)
        right, _ = reference.slot_mapping(moved(rows, "cpu"), cache.window_block_table)
        assert_same(found, right)
        one, other_one = (
            table[row][at // 4 % 3] * 4 + at % 4 for row, at in ((1, position), (0, 95 - position))
        )
        assert right.tolist() == [one, -1, other_one]
    slots = torch.tensor([48, 49, 52, 55], dtype=torch.int32)
    into = torch.tensor([7, 0, 47, 31], dtype=torch.int32)
    before = cache.window_kv.clone()
    ops.keep_windows(slots.to(DEVICE), into.to(DEVICE))
    reference.keep_windows(slots, into)
    assert_same(other.window_kv, cache.window_kv)
    assert torch.equal(cache.window_kv[:, into.long()], before[:, slots.long()])
    assert int((cache.window_kv != before).flatten(2).any(2).sum()) == len(into)
