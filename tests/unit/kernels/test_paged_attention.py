"""Attention over pages by kernels. Without a GPU they run in Triton's interpreter, on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hiscore.attention import paged_triton
from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse.cache_ops import CacheOps, PageLists
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from tests.support.decode_kernels import (
    DEVICE,
    assert_same,
    attention_shape,
    in_float64,
    moved,
    on_device,
    random,
    rows_of,
)
from tests.support.fixed_sums import fix_sums
from tests.support.tiers import first_of


def filled(shape: CacheShape, seed: int = 0) -> KVCache:
    """A cache of random tokens whose sequences all own different, shuffled pages; the rest is poison."""
    rng = np.random.default_rng(seed)
    cache = KVCache.allocate(shape, torch.float32, torch.device("cpu"))
    for tensor in (cache.dense_kv, cache.buffer):
        tensor.copy_(random(*tensor.shape, seed=seed).cpu())
    table = rng.permutation(shape.host_pages)[: shape.max_sequences * shape.max_pages]
    cache.host_block_table[:, : shape.max_pages].copy_(
        torch.from_numpy(table.reshape(shape.max_sequences, -1))
    )
    return on_device(cache)


ATTENTION = CacheShape(
    layers=2, kv_heads=2, kv_parts=2, head_dim=24, page_size=8, max_sequences=3, max_pages=20,
    host_pages=60, device_pages=60,
    lru_pages=20, ring_pages=2, top_pages=20, dense_layers=frozenset({0}), index_kind="bounds",
)  # fmt: skip


@pytest.mark.parametrize("window", first_of(50, None, 1, others=pytest.mark.slow))
@pytest.mark.parametrize(
    ("group", "soft_cap", "with_sinks"), [(3, None, False), (1, 1.5, False), (3, None, True)]
)
def test_dense_attention_equals_plain_torch(
    window: int | None, group: int, soft_cap: float | None, with_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_triton, "SPLIT", 32)
    cache = filled(ATTENTION)
    shape = attention_shape(ATTENTION, group, soft_cap=soft_cap, windows=(window, None))
    sinks = random(shape.heads, seed=5) if with_sinks else None
    shape = replace(shape, sinks=None if sinks is None else (sinks,) * 2)
    ops = TritonCacheOps(cache, shape, 160)
    rows = rows_of([1, -1, 0, 2, 1], [159, 7, 0, 63, 64])
    # Nothing beyond a row's position may be read.
    for seq_index, last in ((0, 0), (2, 63)):
        beyond = torch.arange(last + 1, 160, device=DEVICE)
        at = cache.host_block_table[seq_index, beyond // 8].long() * 8 + beyond % 8
        cache.dense_kv[:, at] = float("nan")
    q = random(5, shape.heads + 2 * shape.kv_heads, 24, seed=1)[:, : shape.heads]
    actual = ops.attend(0, q, ops.all_pages(rows), rows)
    plain, on_cpu = in_float64(cache), moved(rows, "cpu")
    reference = CacheOps(plain, replace(shape, sinks=None if sinks is None else (sinks.cpu(),) * 2))
    expected = reference.attend(0, q.cpu().double(), reference.all_pages(on_cpu), on_cpu)
    real = rows.seq_indices.cpu() >= 0
    # float32 means of at most 160 values of about 1: 1e-5 is ten times their rounding.
    torch.testing.assert_close(actual.cpu().double()[real], expected[real], atol=1e-5, rtol=0)
    # One token more or less shows.
    shorter = ops.attend(0, q, ops.all_pages(rows), rows_of([1, -1, 0, 2, 1], [158, 7, 0, 62, 63]))
    assert (actual - shorter)[[0, 3, 4]].abs().amax((1, 2)).min() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 33, 50, 64])
@pytest.mark.parametrize("parts", [1, 2])
def test_nothing_before_a_window_is_read(window: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages there hold other tokens by now, or what another sequence has left."""
    monkeypatch.setattr(paged_triton, "SPLIT", 32)
    sizes = replace(ATTENTION, kv_heads=1, kv_parts=1) if parts == 1 else ATTENTION
    cache = filled(sizes)
    shape = attention_shape(sizes, 3, windows=(window, None))
    ops = TritonCacheOps(cache, shape, 160, value_dim=16 if parts == 1 else None)
    rows, q = rows_of([1, 2], [159, 93]), random(2, shape.heads, 24, seed=1)

    def poison(seq_index: int, positions: torch.Tensor) -> None:
        at = cache.host_block_table[seq_index, positions // 8].long() * 8 + positions % 8
        cache.dense_kv[:, at] = float("nan")

    def attend() -> torch.Tensor:
        return ops.attend(0, q, ops.all_pages(rows), rows)

    clean = attend()
    for seq_index, position in ((1, 159), (2, 93)):
        poison(seq_index, torch.arange(position + 1 - window, device=DEVICE))
    assert_same(attend(), clean)
    # The control: the first token that is seen.
    poison(1, torch.tensor([160 - window], device=DEVICE))
    assert attend()[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision_equals_plain_torch(dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as integers")
    cache, shape = filled(ATTENTION), attention_shape(ATTENTION, 3)
    for name in ("dense_kv", "buffer", "index", "host_kv"):
        setattr(cache, name, getattr(cache, name).to(dtype))
    ops, rows = TritonCacheOps(cache, shape, 160), rows_of([2, 0], [159, 40])
    q = random(2, shape.heads, 24, seed=1).to(dtype)
    actual = ops.attend(0, q, ops.all_pages(rows), rows)
    assert actual.dtype == dtype
    reference, on_cpu = (CacheOps(in_float64(cache), shape), moved(rows, "cpu"))
    expected = reference.attend(0, q.cpu().double(), reference.all_pages(on_cpu), on_cpu)
    # Shares, and the result, are rounded to at least 8 bits; a result is a mean of values of at most about 4.
    torch.testing.assert_close(actual.cpu().double(), expected, atol=2**-7, rtol=2**-7)


@pytest.mark.slow
def test_where_pages_lie_and_who_else_is_there_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_sums(monkeypatch)
    monkeypatch.setattr(paged_triton, "SPLIT", 32)
    cache = filled(ATTENTION)
    shape = attention_shape(ATTENTION, 3)
    ops = TritonCacheOps(cache, shape, 160)
    rows = rows_of([1, 0], [157, 100])
    q = random(2, shape.heads, 24, seed=1)
    dense = ops.attend(0, q, ops.all_pages(rows), rows)
    # The same tokens in the buffer, elsewhere and differently for each head, by lists instead of a table.
    rng = np.random.default_rng(2)
    pages = (
        torch.stack([torch.from_numpy(rng.permutation(60)[:20]) for _ in range(4)]).view(2, 2, 20).to(DEVICE)
    )
    dense_kv, buffer = cache.dense_kv[0].unflatten(0, (-1, 8)), cache.buffer[0].unflatten(0, (-1, 8))
    buffer.fill_(float("nan"))
    pages[1, 0] = torch.tensor([x for x in range(60) if x not in pages[0, 0].tolist()][:20])
    pages[1, 1] = torch.tensor([x for x in range(60) if x not in pages[0, 1].tolist()][:20])
    for row, seq_index in enumerate((1, 0)):
        for head in range(2):
            buffer[pages[row, head], :, :, head] = dense_kv[
                cache.host_block_table[seq_index, :20].long(), :, :, head
            ]
    counts = torch.tensor([[20, 20], [13, 13]], dtype=torch.int32, device=DEVICE)
    lists = PageLists(pages.int().contiguous(), counts)
    assert_same(ops.attend(1, q, lists, rows), dense)
    # Other rows, and grids for shorter sequences.
    short = TritonCacheOps(cache, shape, 104)
    alone = rows_of([0], [100])
    assert_same(short.attend(0, q[1:], short.all_pages(alone), alone)[0], dense[1])
    # The control: the same set in another order has other bits.
    lists.pages[:, :, :12] = lists.pages[:, :, :12].flip(2)
    turned = ops.attend(1, q, lists, rows)
    torch.testing.assert_close(turned, dense, atol=1e-5, rtol=0)
    assert not torch.equal(turned, dense)


@pytest.mark.slow
def test_pages_on_their_way_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits whose pages are all there are computed before the others have arrived."""
    monkeypatch.setattr(paged_triton, "SPLIT", 32)
    cache = filled(ATTENTION)
    ops = TritonCacheOps(cache, attention_shape(ATTENTION, 3), 160)
    rows, q = rows_of([1, -1, 0], [157, 0, 100]), random(3, 6, 24, seed=1)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3)).int().to(DEVICE)
    pages = order.view(3, 1, 20).repeat(1, 2, 1)
    counts = torch.tensor([[20, 20], [0, 0], [13, 13]], dtype=torch.int32, device=DEVICE)
    expected = ops.attend(1, q, PageLists(pages, counts), rows)
    # Of row 0: two pages of one split, and one of another.
    pending = pages.clone()
    for place in (4, 6, 19):
        pending[0, :, place] = ~pages[0, :, place]
    buffer = cache.buffer[0].unflatten(0, (-1, 8))
    arriving = pages[0, :, [4, 6, 19]].flatten().long()
    content = buffer[arriving].clone()

    def attend(arrive: bool) -> torch.Tensor:
        buffer[arriving] = float("nan")

        def wait() -> None:
            if arrive:
                buffer[arriving] = content

        return ops.attend(1, q, PageLists(pending, counts, wait=wait), rows)

    assert_same(attend(arrive=True)[[0, 2]], expected[[0, 2]])
    # The control: what has not arrived shows, and only there.
    lost = attend(arrive=False)
    assert lost[0].isnan().all()
    assert_same(lost[2], expected[2])


@pytest.mark.slow
def test_a_latent_is_key_and_value_at_once() -> None:
    shape = CacheShape(
        layers=1, kv_heads=1, kv_parts=1, head_dim=40, page_size=1, max_sequences=2, max_pages=300,
        host_pages=600, device_pages=600,
        lru_pages=290, ring_pages=2, top_pages=280, index_kind="dsa", index_dim=4,
    )  # fmt: skip
    cache = filled(shape)
    sizes = AttentionShape(36, 1, 40, 0.2, None, (None,))
    ops = TritonCacheOps(cache, sizes, 300, value_dim=24)
    rows = rows_of([1, -1, 0], [299, 0, 99])
    counts = torch.tensor([[280], [0], [100]], dtype=torch.int32, device=DEVICE)
    pages = torch.randperm(600, generator=torch.Generator().manual_seed(1))[:560].view(2, 1, 280)
    pages = torch.cat((pages[:1], pages[:1], pages[1:])).int().to(DEVICE)
    q = random(3, 36, 40, seed=2)
    actual = ops.attend(0, q, PageLists(pages, counts), rows)
    reference = CacheOps(in_float64(cache), sizes, value_dim=24)
    on_cpu = moved(rows, "cpu")
    expected = reference.attend(0, q.cpu().double(), PageLists(pages.cpu(), counts.cpu()), on_cpu)
    torch.testing.assert_close(actual[[0, 2]].cpu().double(), expected[[0, 2]], atol=1e-5, rtol=0)


def test_heads_apart_are_refused() -> None:
    cache = filled(ATTENTION)
    ops = TritonCacheOps(cache, attention_shape(ATTENTION, 1), 160)
    rows = rows_of([0], [5])
    with pytest.raises(ValueError, match="contiguous"):
        ops.attend(0, random(1, 24, 2).transpose(1, 2), ops.all_pages(rows), rows)
