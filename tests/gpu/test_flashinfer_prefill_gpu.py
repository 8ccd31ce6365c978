"""FlashInfer's attention in prompts: its numbers, the same bits over pages and rows, cut anywhere, in a graph."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.attention import flashinfer_blocks
from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_prefill import FlashInferAttention
from hiscore.attention.flashinfer_rows import MIN_ROWS
from hiscore.attention.flashinfer_sizes import PagedSizes, buffer_bytes
from hiscore.attention.metadata import Forward
from hiscore.decoding.models.gqa import pack_chunks
from tests.support.dense import dense_attention
from tests.support.prefill_chunks import chunk

pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU"
    ),
]

PAGE, PAGES, MAX_ROWS, SEGMENTS = 16, 64, 512, 5
SEGMENT_PAGES = 19
SHAPE = AttentionShape(8, 2, 128, 128**-0.5, None, (None, None))
ROW = SHAPE.heads + 2 * SHAPE.kv_heads
# Weights of a softmax in bfloat16, and its output: 2**-8 of values around 1 each, and their sums' own rounding.
TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def attention() -> FlashInferAttention:
    return FlashInferAttention(
        SHAPE, torch.bfloat16, torch.device("cuda"), PagedSizes(PAGE, SEGMENT_PAGES, MAX_ROWS, SEGMENTS)
    )


LONG = PagedSizes(PAGE, 2 * MIN_ROWS // PAGE, 2 * MIN_ROWS, 2)


@pytest.mark.parametrize("sizes", [PagedSizes(PAGE, SEGMENT_PAGES, MAX_ROWS, SEGMENTS), LONG])
def test_it_allocates_what_is_planned(sizes: PagedSizes) -> None:
    device = torch.device("cuda")
    before = torch.cuda.memory_allocated()
    kept = FlashInferAttention(SHAPE, torch.bfloat16, device, sizes)
    allocated = torch.cuda.memory_allocated() - before
    planned, _ = buffer_bytes(sizes)
    assert bool(kept.over_rows(MIN_ROWS)) == (sizes is LONG)
    # The allocator rounds each tensor up to 512 bytes, and the pages of the last plan are kept.
    assert planned - 2**12 <= allocated <= planned + (2**14 if sizes is LONG else 2**13)


def rows_of(sequence: int, start: int, end: int) -> Tensor:
    """Queries, keys and values of a sequence's tokens: the same ones for the same positions."""
    generator = torch.Generator().manual_seed(sequence)
    return torch.randn(600, ROW, SHAPE.head_dim, generator=generator)[start:end].bfloat16()


def attend(
    attention: FlashInferAttention, chunks: list[tuple[int, list[int], int, int]], pool: Tensor
) -> tuple[Tensor, Forward, Tensor]:
    forward = pack_chunks([chunk(pages, start, end) for _, pages, start, end in chunks])
    qkv = torch.cat([rows_of(sequence, start, end) for sequence, _, start, end in chunks]).cuda()
    pool[torch.from_numpy(forward.slot_mapping).cuda()] = qkv[:, SHAPE.heads :].unflatten(1, (2, -1))
    attention.plan(forward)
    return attention.attend(0, qkv.flatten(1), pool), forward, qkv


def new_pool() -> Tensor:
    return torch.full(
        (PAGES * PAGE, 2, SHAPE.kv_heads, SHAPE.head_dim), float("nan"), dtype=torch.bfloat16, device="cuda"
    )


def pages(first: int, tokens: int) -> list[int]:
    """Not in order, so that a table is needed."""
    return [first + (7 * i) % 31 for i in range(-(-tokens // PAGE))]


def test_it_computes_attention_over_pages(attention: FlashInferAttention) -> None:
    pool = new_pool()
    attend(attention, [(0, pages(0, 300), 0, 112)], pool)
    out, forward, qkv = attend(
        attention, [(0, pages(0, 300), 112, 300), (1, pages(32, 77), 0, 77), (2, [63], 0, 3)], pool
    )
    truth = dense_attention(forward, SHAPE, None, qkv.cpu(), pool.cpu().nan_to_num())
    assert (out.cpu().double() - truth).abs().max() < TOLERANCE
    # Control: one page of the context is another one.
    pool[pages(0, 300)[2] * PAGE :][:PAGE] = 1
    attention.plan(forward)
    spoilt = attention.attend(0, qkv.flatten(1), pool)
    assert (spoilt.cpu().double() - truth).abs().max() > TOLERANCE


def test_segments_may_share_more_pages_than_the_pool_has(attention: FlashInferAttention) -> None:
    pool, shared = new_pool(), pages(0, 288)
    attend(attention, [(0, shared, 0, 288)], pool)
    chunks = [(sequence, [*shared, 40 + sequence], 288, 293) for sequence in range(SEGMENTS)]
    assert sum(len(table) for _, table, _, _ in chunks) > PAGES
    out, forward, qkv = attend(attention, chunks, pool)
    truth = dense_attention(forward, SHAPE, None, qkv.cpu(), pool.cpu().nan_to_num())
    assert (out.cpu().double() - truth).abs().max() < TOLERANCE


@pytest.mark.parametrize("cuts", [[16], [128], [16, 160, 272], [256]])
def test_where_a_prompt_is_cut_changes_no_bit(attention: FlashInferAttention, cuts: list[int]) -> None:
    whole, _, _ = attend(attention, [(0, pages(0, 300), 0, 300)], new_pool())
    pool, parts = new_pool(), []
    for start, end in zip([0, *cuts], [*cuts, 300], strict=True):
        # Company moves its rows.
        company = (1, pages(32, 50), 0, 50)
        out, _, _ = attend(attention, [company, (0, pages(0, 300), start, end)], pool)
        parts.append(out[50:])
    assert torch.equal(torch.cat(parts), whole)


def test_a_captured_launch_attends_to_what_is_planned_later(attention: FlashInferAttention) -> None:
    pool = new_pool()
    wanted, forward, qkv = attend(attention, [(0, pages(0, 300), 0, 300)], pool)
    rows = torch.zeros(MAX_ROWS, ROW * SHAPE.head_dim, dtype=torch.bfloat16, device="cuda")
    attention.plan_rows(MAX_ROWS)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention.attend(0, rows, pool)
    rows[:300] = qkv.flatten(1)
    graph.replay()
    assert not torch.equal(out[:300], wanted)  # control: nothing was planned for it
    attention.plan(forward)
    graph.replay()
    assert torch.equal(out[:300], wanted)


@pytest.mark.parametrize("tokens", [1_921, 2_000, 2_047, 2_048])
def test_a_whole_prompt_has_the_same_bits_over_its_rows(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it comes padding. The control has the library's blocks over pages."""
    device, rows = torch.device("cuda"), MIN_ROWS
    attention = FlashInferAttention(SHAPE, torch.bfloat16, device, LONG)
    monkeypatch.setattr(flashinfer_blocks, "HEAD_DIM", None)
    library = FlashInferAttention(SHAPE, torch.bfloat16, device, LONG)
    qkv = torch.randn(rows, ROW, SHAPE.head_dim, generator=torch.Generator().manual_seed(7)).bfloat16().cuda()
    order = np.random.default_rng(0).permutation(2 * MIN_ROWS // PAGE)[: -(-tokens // PAGE)].tolist()
    forward = pack_chunks([chunk(order, 0, tokens)])
    pool = torch.zeros(2 * MIN_ROWS, 2, SHAPE.kv_heads, SHAPE.head_dim, dtype=torch.bfloat16, device=device)
    pool[torch.from_numpy(forward.slot_mapping).cuda()] = qkv[:tokens, SHAPE.heads :].unflatten(1, (2, -1))
    over_pages = []
    for each in (attention, library):
        each.plan(forward)
        over_pages.append(each.attend(0, qkv[:tokens].flatten(1), pool))
    over_rows = attention.over_rows(rows)
    assert over_rows
    over_rows.plan(tokens, rows)
    out = over_rows.attend(0, qkv.flatten(1), pool)
    assert torch.equal(out[:tokens], over_pages[0])
    assert not torch.equal(out[:tokens], over_pages[1])
    assert out.isfinite().all()  # padding, too
    assert library.over_rows(rows) is None


def test_a_prompt_that_goes_on_over_pages_has_the_bits_of_one_forward() -> None:
    """Its first part attends over rows, and the rest over pages. Plans change without a wait.

    The control: another key on a page.
    """
    attention = FlashInferAttention(SHAPE, torch.bfloat16, torch.device("cuda"), LONG)
    first, tokens = MIN_ROWS, MIN_ROWS + 208
    qkv = (
        torch.randn(tokens, ROW, SHAPE.head_dim, generator=torch.Generator().manual_seed(8)).bfloat16().cuda()
    )
    table = np.random.default_rng(2).permutation(2 * MIN_ROWS // PAGE)[: tokens // PAGE].tolist()
    pool = torch.full(
        (2 * MIN_ROWS, 2, SHAPE.kv_heads, SHAPE.head_dim), float("nan"), device="cuda"
    ).bfloat16()
    parts = [pack_chunks([chunk(table, 0, first)]), pack_chunks([chunk(table, first, tokens)])]
    for part, rows in zip(parts, (qkv[:first], qkv[first:]), strict=True):
        pool[torch.from_numpy(part.slot_mapping).cuda()] = rows[:, SHAPE.heads :].unflatten(1, (2, -1))
    over_rows = attention.over_rows(MIN_ROWS)
    assert over_rows

    def in_parts() -> Tensor:
        over_rows.plan(first, first)
        begin = over_rows.attend(0, qkv[:first].flatten(1), pool)
        attention.plan(parts[1])
        end = attention.attend(0, qkv[first:].flatten(1), pool)
        return torch.cat([begin, end])

    over_rows.plan(tokens, tokens)
    whole = over_rows.attend(0, qkv.flatten(1), pool)
    for _ in range(20):
        assert torch.equal(in_parts(), whole)
    pool[table[3] * PAGE] = 1
    assert not torch.equal(in_parts(), whole)
