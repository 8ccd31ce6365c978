"""Attention over pages: its definition, and that where a page comes from changes no bit."""

import pytest
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import paged_attention
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse import residency
from hiscore.decoding.sparse.cache_ops import PageLists
from hiscore.decoding.sparse.selectors import QuestSelector
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from tests.support.decode_cache import KnownCache, forget, random_contents

HEADS, KV_HEADS, WIDTH = 6, 2, 8
ATTENTION = AttentionShape(HEADS, KV_HEADS, WIDTH, 0.3, None, (None, None))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
PAGES = pytest.mark.parametrize("page", [4, 1])
LENGTHS = {4: 37, 0: 3, 2: 20, 1: 61}


def shape_of(page: int, top_tokens: int, dense: bool = False) -> CacheShape:
    top, ring = top_tokens // page, 2 if page == 4 else 5
    return CacheShape(
        layers=2, kv_heads=KV_HEADS, kv_parts=2, head_dim=WIDTH, page_size=page, max_sequences=6,
        max_pages=120 // page,
        host_pages=600 // page, device_pages=600 // page, lru_pages=top, ring_pages=ring, top_pages=top,
        dense_layers=frozenset({0, 1}) if dense else frozenset(), index_kind="bounds",
    )  # fmt: skip


def known_cache(shape: CacheShape, dtype: torch.dtype, attention: AttentionShape = ATTENTION) -> KnownCache:
    contents = random_contents(shape, seed=7, sequences=8)
    known = KnownCache(
        shape, contents, newest=5, selector=lambda cache: QuestSelector(cache, attention), dtype=dtype
    )
    for number, (seq_index, length) in enumerate(LENGTHS.items()):
        assert known.admit(seq_index, length, 120, number=number)
    return known


def queries(rows: int, step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return 3 * torch.randn(rows, HEADS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def dense_step(known: KnownCache, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
    ops = TorchCacheOps(known.cache, ATTENTION)
    return ops.attend(layer, q, ops.all_pages(rows), rows)


def sparse_step(known: KnownCache, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
    ops = TorchCacheOps(known.cache, ATTENTION)
    return ops.attend(layer, q, ops.select_pages(layer, ops.page_scores(layer, q, rows), rows).lists, rows)


def clear(known: KnownCache, seq_indices: list[int]) -> None:
    """Leave only the ring on the device, and poison the rest."""
    page = known.shape.page_size
    for seq_index in seq_indices:
        forget(known.cache, seq_index)
        lru = known.pages[seq_index][1][: known.shape.lru_pages]
        known.cache.buffer.unflatten(1, (-1, page))[:, lru] = float("nan")


@DTYPES
@PAGES
def test_everything_out_of_the_host_is_dense_to_the_last_bit(page: int, dtype: torch.dtype) -> None:
    sparse = known_cache(shape_of(page, 80), dtype)
    dense = known_cache(shape_of(page, 80, dense=True), dtype)
    assert not sparse.cache.fully_resident[list(LENGTHS)].any()
    for step in range(15):
        seq_indices = [seq_index for seq_index in LENGTHS if (seq_index + step) % 4]
        rows = sparse.rows(seq_indices, padding=step % 2)
        q = queries(len(rows.seq_indices), step, dtype)
        sparse.write(rows)
        dense.write(rows)
        clear(sparse, seq_indices)
        before = int(sparse.cache.misses)
        for layer in range(2):
            assert torch.equal(sparse_step(sparse, layer, q, rows), dense_step(dense, layer, q, rows))
        assert int(sparse.cache.misses) > before
        sparse.end_step(rows)
        dense.end_step(rows)


@DTYPES
@PAGES
def test_all_resident_is_all_missing_to_the_last_bit(page: int, dtype: torch.dtype) -> None:
    """Two caches choose the same few pages of many; one keeps what it can, the other starts with none."""
    keeping, clearing = known_cache(shape_of(page, 20), dtype), known_cache(shape_of(page, 20), dtype)
    for step in range(15):
        rows = keeping.rows(list(LENGTHS))
        q = queries(len(rows.seq_indices), step, dtype)
        keeping.write(rows)
        clearing.write(rows)
        for layer in range(2):
            first = sparse_step(keeping, layer, q, rows)
            misses = int(keeping.cache.misses)
            again = sparse_step(keeping, layer, q, rows)
            assert int(keeping.cache.misses) == misses
            clear(clearing, list(LENGTHS))
            out = sparse_step(clearing, layer, q, rows)
            assert torch.equal(first, again)
            assert torch.equal(first, out)
        keeping.end_step(rows)
        clearing.end_step(rows)
    assert int(clearing.cache.misses) > int(keeping.cache.misses) > 0
    assert float(keeping.cache.mass[0] / keeping.cache.mass[1]) < 0.99


def test_a_skipped_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "copy_pages", lambda *_: None)
    with pytest.raises(AssertionError):
        test_everything_out_of_the_host_is_dense_to_the_last_bit(4, torch.float32)


def test_another_order_has_other_bits() -> None:
    """What the equalities above rest on: the same set in another order is not the same to the last bit."""
    dense = known_cache(shape_of(1, 20, dense=True), torch.float32)
    rows = dense.rows([1])
    dense.write(rows)
    q = queries(1, 0, torch.float32)
    ops = TorchCacheOps(dense.cache, ATTENTION)
    lists = ops.all_pages(rows)
    order = torch.randperm(lists.pages.shape[-1], generator=torch.Generator().manual_seed(1))
    turned = PageLists(lists.pages[..., order], lists.counts)
    outs = [ops.attend(0, q, each, rows) for each in (lists, turned)]
    assert not torch.equal(*outs)
    # Rounding of sums of 62 weights in float32.
    torch.testing.assert_close(*outs, atol=1e-5, rtol=0)


@DTYPES
def test_a_row_s_bits_are_its_own(dtype: torch.dtype) -> None:
    known = known_cache(shape_of(4, 20, dense=True), dtype)
    rows = known.rows(list(LENGTHS), padding=2)
    known.write(rows)
    q = queries(len(rows.seq_indices), 0, dtype)
    together = dense_step(known, 1, q, rows)
    assert not together[len(LENGTHS) :].any()
    for row in range(len(LENGTHS)):
        alone = StepBatch(rows.seq_indices[row, None], rows.positions[row, None])
        assert torch.equal(dense_step(known, 1, q[row, None], alone)[0], together[row])


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 6, 50])
@pytest.mark.parametrize("latent", [False, True])
def test_it_is_the_softmax_of_its_definition(
    latent: bool, window: int | None, soft_cap: float | None, with_sinks: bool
) -> None:
    generator = torch.Generator().manual_seed(11)
    heads, kv_heads, width, value_width, page = 6, 1 if latent else 2, 8, 5 if latent else 8, 4
    tokens = torch.randn(160, 1 if latent else 2, kv_heads, width, generator=generator, dtype=torch.float64)
    q = torch.randn(3, heads, width, generator=generator, dtype=torch.float64)
    sinks = torch.randn(heads, generator=generator, dtype=torch.float64)
    positions = torch.tensor([22, 0, 13], dtype=torch.int32)
    counts = torch.tensor([[4], [0], [2]], dtype=torch.int32).expand(3, kv_heads)
    device_pages = torch.stack([torch.randperm(40, generator=generator)[: kv_heads * 5] for _ in range(3)])
    device_pages = device_pages.view(3, kv_heads, 5).int()
    out = paged_attention(
        q,
        tokens,
        page,
        device_pages,
        counts,
        positions,
        0.3,
        soft_cap,
        window,
        value_width if latent else None,
        sinks if with_sinks else None,
    )
    assert out.shape == (3, heads, value_width)
    assert not out[1].any()
    for row, last in [(0, [0, 1, 2]), (2, [0, 1])]:
        for head in range(heads):
            kv_head = head * kv_heads // heads
            listed = device_pages[row, kv_head, : int(counts[row, 0])].tolist()
            seen = [page_index * page + offset for page_index in listed[:-1] for offset in range(page)]
            seen += [listed[-1] * page + offset for offset in last]
            seen = seen if window is None else seen[-window:]
            logits = [(q[row, head] * tokens[at, 0, kv_head]).sum() * 0.3 for at in seen]
            if soft_cap is not None:
                logits = [soft_cap * torch.tanh(logit / soft_cap) for logit in logits]
            values = torch.stack([tokens[at, -1, kv_head, :value_width] for at in seen])
            # float64 sums of at most 15 terms.
            weights = torch.stack(logits).exp()
            expected = weights @ values / (weights.sum() + (sinks[head].exp() if with_sinks else 0))
            torch.testing.assert_close(out[row, head], expected, atol=1e-14, rtol=1e-13)


def test_lists_of_different_lengths_are_refused() -> None:
    lists, counts = torch.zeros(1, 2, 2, dtype=torch.int32), torch.tensor([[2, 1]])
    with pytest.raises(ValueError, match=r"heads of row 0 have lists of different lengths: \[2, 1\]"):
        paged_attention(torch.ones(1, 2, 4), torch.ones(8, 2, 2, 4), 4, lists, counts, torch.tensor([7]), 1)
