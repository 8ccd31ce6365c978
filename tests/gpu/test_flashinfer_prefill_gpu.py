"""FlashInfer's attention in prompts: its numbers, the same bits wherever a prompt is cut, and in a CUDA graph."""

import pytest
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_prefill import FlashInferAttention, PagedSizes, buffer_bytes
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


def test_it_allocates_what_is_planned() -> None:
    device, sizes = torch.device("cuda"), PagedSizes(PAGE, SEGMENT_PAGES, MAX_ROWS, SEGMENTS)
    before = torch.cuda.memory_allocated()
    kept = FlashInferAttention(SHAPE, torch.bfloat16, device, sizes)
    allocated = torch.cuda.memory_allocated() - before
    planned, _ = buffer_bytes(sizes)
    # The allocator rounds each of five tensors up to 512 bytes, and the pages of the last plan are kept.
    assert planned - 2**12 <= allocated <= planned + 2**13, kept


def rows_of(sequence: int, start: int, end: int) -> Tensor:
    """Queries, keys and values of a sequence's tokens: the same ones for the same positions."""
    generator = torch.Generator().manual_seed(sequence)
    return torch.randn(600, ROW, SHAPE.head_dim, generator=generator)[start:end].bfloat16()


def attend(
    attention: FlashInferAttention, chunks: list[tuple[int, list[int], int, int]], pool: Tensor
) -> tuple[Tensor, Forward, Tensor]:
    """Write these chunks (sequence, pages, start, end) to the pool and attend to it."""
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
