"""Scores of pages and the index by kernels. Without a GPU they run in Triton's interpreter, on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from tests.support.decode_kernels import (
    DEVICE,
    SHAPE,
    assert_same,
    attention_shape,
    moved,
    on_device,
    random,
    rows_of,
)


@pytest.mark.parametrize("page", [4, 1])
def test_scores_and_the_index_equal_plain_torch(page: int) -> None:
    shape = replace(SHAPE, page_size=page, head_dim=24, max_pages=24, top_pages=3, lru_pages=3)
    sizes = attention_shape(shape, 3)
    plain = KVCache.allocate(shape, torch.float32, torch.device("cpu"))
    # What a page's last owner left; NaN would go unnoticed, since a minimum passes over it.
    plain.index.fill_(-1e3)
    tables = np.random.default_rng(0).permuted(np.tile(np.arange(80), (6, 1)), axis=1)[:, :24]
    plain.host_block_table.copy_(torch.from_numpy(tables))
    cache = on_device(plain)
    ops, reference = TritonCacheOps(cache, sizes, shape.max_pages * page), CacheOps(plain, sizes)
    # A prompt of 13 tokens, all at once; then tokens one by one, with padding.
    seq_index, length = 2, 13
    pages = plain.host_block_table[seq_index, : -(-length // page)]
    host_slots = pages[torch.arange(length) // page] * page + torch.arange(length) % page
    staging = random(3, 40, 2, shape.kv_heads, shape.head_dim, seed=1)
    slots = torch.from_numpy(np.random.default_rng(1).permutation(40)[:length]).int()
    ops.index_prompt(staging, slots.to(DEVICE), pages.to(DEVICE), host_slots.to(DEVICE))
    reference.index_prompt(staging.cpu(), slots, pages, host_slots)
    assert_same(cache.index, plain.index)
    last = length + 5
    for layer in shape.sparse_layers:
        for position in range(length, last + 1):
            # Keys come between queries and values.
            new = random(2, shape.kv_heads * 5, shape.head_dim, seed=position)[:, sizes.heads :]
            new = new[:, : shape.kv_heads]
            at = int(plain.host_block_table[seq_index, position // page]) * page + position % page
            at = torch.tensor([-1, at], dtype=torch.int32)
            ops.write_index(layer, new, at.to(DEVICE))
            reference.write_index(layer, new.cpu(), at)
        assert_same(cache.index, plain.index)
        rows = rows_of([-1, seq_index, seq_index], [0, last, length])
        q = random(3, shape.kv_heads * 5, shape.head_dim, seed=layer)[:, : sizes.heads]
        actual = ops.page_scores(layer, q, rows).cpu()
        expected = reference.page_scores(layer, q.cpu(), moved(rows, "cpu"))
        for row, at in ((1, last), (2, length)):
            count = at // page + 1
            assert count > shape.top_pages
            assert expected[row, :, :count].abs().min() > 0
            # float32 sums of 24 products of about 1: 1e-5 is ten times their rounding.
            torch.testing.assert_close(actual[row, :, :count], expected[row, :, :count], atol=1e-5, rtol=0)


def test_an_indexers_scores_equal_plain_torch() -> None:
    rows = {"kv_heads": 1, "kv_parts": 1, "page_size": 1, "max_pages": 90, "host_pages": 300}
    shape = replace(SHAPE, index_kind="dsa", index_dim=24, **rows)
    plain = KVCache.allocate(shape, torch.float32, torch.device("cpu"))
    keys = random(*plain.index.shape[:2], 24).cpu()
    plain.index.copy_(keys)
    plain.host_block_table.copy_(torch.arange(6 * 90).view(6, 90) * 7 % 300)
    cache, sizes = on_device(plain), attention_shape(shape, 2)
    ops, reference = TritonCacheOps(cache, sizes, 90), CacheOps(plain, sizes)
    key, at = random(2, 24, seed=3), torch.tensor([-1, int(plain.host_block_table[1, 88])], dtype=torch.int32)
    ops.write_index(2, key, at.to(DEVICE))
    reference.write_index(2, key.cpu(), at)
    assert_same(cache.index, plain.index)
    q, gates = random(3, 5, 24, seed=1), random(3, 5, seed=2)
    rows = rows_of([1, -1, 4], [88, 3, 30])
    actual = ops.indexer_scores(2, q, gates, rows).cpu()
    on_cpu = moved(rows, "cpu")
    expected = reference.indexer_scores(2, q.cpu(), gates.cpu(), on_cpu)
    for row, count in ((0, 89), (2, 31)):
        torch.testing.assert_close(actual[row, 0, :count], expected[row, 0, :count], atol=5e-5, rtol=0)
