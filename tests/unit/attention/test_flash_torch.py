"""Attention in parts against one softmax over all keys, in float64."""

import pytest
import torch
from torch import Tensor

from hiscore.attention.flash_torch import Attended, flash_attention

SEGMENTS, ROWS, HEADS, KV_HEADS, HEAD_DIM, SCALE = 3, 5, 6, 2, 8, 0.7
# Float64 sums of at most 50 terms.
ATOL = 1e-12


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys(count: int, segments: int = SEGMENTS, seed: int = 0) -> tuple[Tensor, Tensor]:
    shape = segments, count, KV_HEADS, HEAD_DIM
    return random(*shape, seed=seed + 1), random(*shape, seed=seed + 2)


def dense(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None, sinks: Tensor | None = None
) -> Tensor:
    """[segments, rows, heads, head_dim], of one softmax."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=2) for x in (k, v))
    logits = torch.einsum("nihd,njhd->nhij", q, k) * SCALE
    if hidden is not None:
        logits = logits.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        logits = torch.cat((logits, sinks[:, None, None].expand(*logits.shape[:-1], 1)), dim=-1)
    return torch.einsum("nhij,njhd->nihd", logits.softmax(-1)[..., : k.shape[1]], v)


Q = random(SEGMENTS, ROWS, HEADS, HEAD_DIM, seed=9)
FUTURE = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("count", [1, 40])
def test_sees_all_keys(count: int) -> None:
    attended = flash_attention(Q, *keys(count), SCALE, causal=False)
    torch.testing.assert_close(attended.out, dense(Q, *keys(count)), atol=ATOL, rtol=0)


def test_sees_itself_causally() -> None:
    attended = flash_attention(Q, *keys(ROWS), SCALE, causal=True)
    torch.testing.assert_close(attended.out, dense(Q, *keys(ROWS), FUTURE), atol=ATOL, rtol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(attended.out, dense(Q, *keys(ROWS)), atol=ATOL, rtol=0)


def joined() -> tuple[Attended, Tensor, Tensor, Tensor]:
    """Attention to 40 keys and then to the rows themselves; and all keys, values and what is hidden."""
    context, own = keys(40), keys(ROWS, seed=5)
    seen = flash_attention(Q, *context, SCALE, causal=False)
    attended = seen.join(flash_attention(Q, *own, SCALE, causal=True))
    k, v = (torch.cat(parts, dim=1) for parts in zip(context, own, strict=True))
    return attended, k, v, torch.nn.functional.pad(FUTURE, (40, 0))


def test_parts_join_to_one_softmax() -> None:
    attended, k, v, hidden = joined()
    torch.testing.assert_close(attended.out, dense(Q, k, v, hidden), atol=ATOL, rtol=0)
    # The sums are those of all keys, too: a third part can be joined.
    more = keys(7, seed=20)
    attended = attended.join(flash_attention(Q, *more, SCALE, causal=False))
    k, v = torch.cat((k, more[0]), dim=1), torch.cat((v, more[1]), dim=1)
    hidden = torch.nn.functional.pad(hidden, (0, 7))
    torch.testing.assert_close(attended.out, dense(Q, k, v, hidden), atol=ATOL, rtol=0)


def test_sinks_take_their_share_of_the_sum() -> None:
    sinks = random(HEADS, seed=30)
    attended, k, v, hidden = joined()
    with_sinks = attended.with_sinks(sinks)
    torch.testing.assert_close(with_sinks, dense(Q, k, v, hidden, sinks), atol=ATOL, rtol=0)
    assert (with_sinks - attended.out).abs().max() > 0.01


def test_rows_of_a_segment_become_segments() -> None:
    """A shared context is attended to by all rows of a group together."""
    context = keys(40, segments=1)
    together = flash_attention(Q.flatten(0, 1)[None], *context, SCALE, causal=False)
    rows = torch.arange(SEGMENTS * ROWS).view(SEGMENTS, ROWS)
    alone = [flash_attention(one[None], *context, SCALE, causal=False) for one in Q]
    torch.testing.assert_close(
        together.of(rows).out, torch.cat([one.out for one in alone]), atol=ATOL, rtol=0
    )
    torch.testing.assert_close(
        together.of(rows).log_sum, torch.cat([one.log_sum for one in alone]), atol=ATOL, rtol=0
    )
