"""Copies to the host and back by kernels. Without a GPU they run in Triton's interpreter, on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse import triton_transfers
from hiscore.decoding.sparse.block_tables import slot_mapping
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
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

NEWEST = 5


# The dense layer has a copy on the host, or none.
SHAPES = (SHAPE, replace(SHAPE, device_only=frozenset({1})))


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
@pytest.mark.parametrize("at_once", [1, 2, 64])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 27])
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
    staging = torch.arange(3 * 32 * 16, dtype=torch.float32, device=DEVICE).view(3, 32, 2, 2, 4)
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
    reference = TorchCacheOps(plain, attention_shape(shape, 1))
    reference.offload_prompt(staging.cpu(), slots.cpu(), pages.cpu())
    reference.fill_dense(staging.cpu(), slots.cpu(), host_slots.cpu())
    reference.fill_buffer(staging.cpu(), slots.cpu(), host_slots.cpu() % 48)
    for name in ("host_kv", "dense_kv", "buffer"):
        assert_same(getattr(cache, name), getattr(plain, name))
        assert (getattr(plain, name) >= 0).any()

    other = torch.full_like(staging, -2.0)
    elsewhere = torch.from_numpy(rng.permutation(32)[:length]).int().to(DEVICE)
    ops.restore_prompt(other, elsewhere, pages)
    right = torch.full_like(staging, -2.0)
    for layer in shape.host_layers:
        right[layer, elsewhere.long()] = staging[layer, slots.long()]
    assert_same(other, right)
