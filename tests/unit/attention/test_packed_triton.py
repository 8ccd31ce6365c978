"""The packed attention kernel against a dense mask. Without a GPU it runs in Triton's interpreter, on the CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import NO_SLOT, Forward, SegmentGroup
from hiscore.attention.packed_torch import TorchAttention
from hiscore.attention.packed_triton import TritonAttention
from hiscore.attention.tile_inputs import describe
from hiscore.prefill.input_layout import pad_scored
from hiscore.scoring.packing.packing import pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from tests.support.dense import dense_attention
from tests.support.layers import DEVICE, random
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiers import first_of
from tests.support.tiles import prepare, squeeze_columns
from tests.unit.attention.test_packed_torch import CALLS


@pytest.mark.parametrize("budget", first_of(37, 1_000, others=pytest.mark.slow))
@pytest.mark.parametrize("window", first_of(6, None, others=pytest.mark.slow))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "soft_cap", "with_sinks"),
    [
        pytest.param(4, 2, 16, None, False, id="plain"),
        pytest.param(4, 2, 16, None, True, id="sinks"),
        pytest.param(6, 2, 24, 1.5, False, id="odd", marks=pytest.mark.slow),
    ],
)
def test_attention_equals_the_dense_mask(
    budget: int,
    window: int | None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    soft_cap: float | None,
    with_sinks: bool,
) -> None:
    rng = np.random.default_rng(1)
    calls = [random_tokens(rng, query, items, 100).prompt() for query, items in CALLS]
    # The last call's query is found in the pool, with a part of it that is not.
    calls.append(Tokens(calls[0].tokens[:30].tolist() + [5] * 9, [[1] * 40, [2]]).prompt())
    sinks = (random(heads, seed=7),) * 2 if with_sinks else None
    shape = AttentionShape(heads, kv_heads, head_dim, 0.4, soft_cap, (window, window), sinks)
    reserve = pool_reserve(64, budget)
    pages = QueryCache(reserve + 4, reserve)
    attention = TritonAttention(shape, torch.float32, multiprocessors=3)
    for forward in pack(calls, budget, pages).forwards:
        rows = len(forward.input_ids) + 5  # with padding, whose keys and values are never to be read
        prepare(attention, forward, rows, pad_scored(forward.scored_rows))
        qkv = random(rows, heads + 2 * kv_heads, head_dim, seed=rows)
        qkv[len(forward.input_ids) :] = float("nan")
        pool = random((reserve + 4) * PAGE, 2, kv_heads, head_dim)
        out = attention.attend(0, qkv.flatten(1).contiguous(), pool)[: len(forward.input_ids)]
        real = qkv[: len(forward.input_ids)].cpu()
        expected = dense_attention(forward, shape, window, real, pool.cpu())
        # float32 sums of at most 80 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=0)
        # The last layer answers for the scored rows.
        scored = torch.from_numpy(forward.scored_rows)
        last = attention.attend(1, qkv.flatten(1).contiguous(), pool).cpu()[scored]
        torch.testing.assert_close(last.double(), expected[scored], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("window", first_of(None, 40))
def test_no_bit_of_a_row_depends_on_what_shares_its_forward(window: int | None, fixed_sums: None) -> None:
    """An item in a call, behind other calls and with its query in the pool: the same bits as alone."""
    heads, kv_heads, head_dim = 4, 2, 16
    rng = np.random.default_rng(3)
    one, other = random_tokens(rng, 75, [50, 3, 90], 100), random_tokens(rng, 21, [33], 100)
    shape = AttentionShape(heads, kv_heads, head_dim, 0.4, None, (window, None))
    attention = TritonAttention(shape, torch.float32, multiprocessors=3)
    heads_of = random(100, 200, heads + 2 * kv_heads, head_dim)  # by token and position
    kept = QueryCache(16, 2)
    pool = torch.full((16 * PAGE, 2, kv_heads, head_dim), float("nan"), device=DEVICE)

    def attend(pages: QueryCache, *calls: Tokens, attention: TritonAttention = attention) -> torch.Tensor:
        """What the last call's rows attend to."""
        (forward,) = pack([call.prompt() for call in calls], 1_000, pages).forwards
        return attend_once(forward, attention)

    def attend_once(forward: Forward, attention: TritonAttention) -> torch.Tensor:
        prepare(attention, forward)
        qkv = heads_of[forward.input_ids, forward.positions]
        written = forward.slot_mapping >= 0
        keys, values = qkv[written, heads:].split(kv_heads, dim=1)
        pool[forward.slot_mapping[written]] = torch.stack((keys, values), dim=1)
        return attention.attend(0, qkv.flatten(1).contiguous(), pool)

    together = attend(QueryCache(8, 0, caching=False), other, one)[-143:]
    attend(kept, one)
    hit = attend(kept, other, one)
    assert len(hit) == 21 + 33 + (75 - 2 * PAGE) + 143  # two pages were found
    for first, last, item in ((0, 50, 0), (50, 53, 1), (53, 143, 2)):
        alone = attend(QueryCache(8, 0, caching=False), Tokens(one.query, [one.items[item]]))[75:]
        torch.testing.assert_close(together[first:last], alone, atol=0, rtol=0)
        torch.testing.assert_close(hit[-143:][first:last], alone, atol=0, rtol=0)

    # Cut in the query, and in the first and the last item.
    for budget, sizes in ((70, [64, 64, 64, 26]), (108, [107, 85, 26])):
        cut = pack([one.prompt()], budget, QueryCache(16, 16)).forwards
        assert [len(forward.input_ids) for forward in cut] == sizes
        assert any(len(group.own_slots) for forward in cut for group in forward.groups)
        parts = torch.cat([attend_once(forward, attention) for forward in cut])[75:]
        torch.testing.assert_close(parts, together, atol=0, rtol=0)

    # Control: keys in blocks of another size are added up in another order, in float32's rounding.
    halved = TritonAttention(shape, torch.float32, multiprocessors=3)
    halved._launch = replace(halved._launch, n=halved._launch.n // 2)
    other_order = attend(
        QueryCache(8, 0, caching=False), Tokens(one.query, [one.items[2]]), attention=halved
    )[75:]
    assert not torch.equal(other_order, alone)
    torch.testing.assert_close(other_order, alone, atol=1e-5, rtol=0)


# The interpreter's numbers are NumPy's, which has no bfloat16.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
SHORT = [1, 2, 3, 5, 8, 13, 16, 17, 31, 33]


@pytest.mark.slow
@pytest.mark.parametrize("window", first_of(None, 24))
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_bit_of_a_short_item_depends_on_where_its_keys_are_in_a_block(
    dtype: torch.dtype, window: int | None, fixed_sums: None
) -> None:
    """Items of any length, in tiles with others before and behind them, cut by tiles or not: as alone."""
    heads, kv_heads, head_dim = (4, 2, 16) if DEVICE == "cpu" else (16, 8, 128)
    query, items = 21, np.random.default_rng(5).permutation(SHORT * (1 if DEVICE == "cpu" else 40)).tolist()
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5, None, (window, None))
    attention = TritonAttention(shape, dtype, multiprocessors=3)
    qkv = random(query + sum(items), heads + 2 * kv_heads, head_dim).to(dtype)
    pool = torch.zeros(PAGE, 2, kv_heads, head_dim, device=DEVICE, dtype=dtype)

    def attend(rows: torch.Tensor, lengths: list[int], squeezed: bool = False) -> torch.Tensor:
        """What the items attend to in one call, whose query and items have these rows."""
        prompt = random_tokens(np.random.default_rng(0), query, lengths, 100).prompt()
        (forward,) = pack([prompt], 30_000, QueryCache(1, 0, caching=False)).forwards
        inputs = prepare(attention, forward)
        if squeezed:
            squeeze_columns(inputs, describe(forward, attention.rows_per_tile).tiles)
        return attention.attend(0, rows.flatten(1).contiguous(), pool)[query:]

    def alone() -> torch.Tensor:
        ends = (query + np.cumsum(items)).tolist()
        return torch.cat(
            [
                attend(torch.cat((qkv[:query], qkv[end - length : end])), [length])
                for length, end in zip(items, ends, strict=True)
            ]
        )

    one_by_one = alone()
    assert bool(one_by_one.isfinite().all())
    torch.testing.assert_close(attend(qkv, items), one_by_one, atol=0, rtol=0)

    # Control: keys of several items behind one another, where slots should be.
    unaligned = attend(qkv, items, squeezed=True)
    assert not torch.equal(unaligned, one_by_one)
    # Results are up to 4, rounded to a last bit of the dtype; of float32 sums see above.
    close = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(unaligned, one_by_one, atol=close, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("window", [1, 24, 50])
def test_nothing_before_a_window_is_read(window: int, by_kernel: bool) -> None:
    """Two parts of prompts, in a layer that keeps everything and in one whose context is a ring of its window."""
    heads, kv_heads, head_dim, starts, lengths = 4, 2, 16, (75, 40), (21, 33)
    shape = AttentionShape(heads, kv_heads, head_dim, 0.4, None, (None, window))
    pool, ring = (random(size, 2, kv_heads, head_dim, seed=size) for size in (200, 128))
    ends = np.cumsum(lengths)
    groups = tuple(
        SegmentGroup(
            int(end) - length, int(end), first + np.arange(start), slice(0, 0),
            window_slots=64 * at + np.arange(start) % 64,
        )
        for at, (first, start, length, end) in enumerate(zip((0, 100), starts, lengths, ends, strict=True))
    )  # fmt: skip
    rows = int(ends[-1])
    positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    forward = Forward(
        np.zeros(rows, np.int32), positions.astype(np.int32), np.array([0, *ends], np.int32), groups,
        np.full(rows, NO_SLOT), np.arange(rows), np.zeros(rows, np.int64),
    )  # fmt: skip
    ring[:] = float("nan")
    for group, start in zip(groups, starts, strict=True):
        seen = np.arange(max(0, start + 1 - window), start)
        ring[group.window_slots[seen]] = pool[group.context_slots[seen]]
    qkv = random(rows, heads + 2 * kv_heads, head_dim)
    if by_kernel:
        attention: Any = TritonAttention(shape, torch.float32, 3, windowed={1})
        prepare(attention, forward)
    else:
        attention = TorchAttention(shape, windowed={1})
        attention.plan(forward)
        qkv, pool, ring = qkv.cpu(), pool.cpu(), ring.cpu()
    for layer, tokens in ((0, pool), (1, ring)):
        out = attention.attend(layer, qkv.flatten(1).contiguous(), tokens)
        expected = dense_attention(forward, shape, shape.windows[layer], qkv.cpu(), pool.cpu())
        # float32 sums of at most 100 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=0)
    # The control: one token of the first row's window.
    if window > 1:
        ring[groups[0].window_slots[starts[0] + 1 - window]] = float("nan")
        assert attention.attend(1, qkv.flatten(1).contiguous(), ring)[0].isnan().any()
