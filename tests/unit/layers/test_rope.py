"""The order of a head's dimensions in which rotary pairs have one in either half."""

import pytest
import torch

from hiscore.layers.rope import rotary_order


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [8, 6, 4])
def test_pairs_are_half_a_head_apart(rotated: int, interleaved: bool) -> None:
    order = rotary_order(8, rotated, interleaved)
    if order is None:
        assert (rotated, interleaved) == (8, False)
        return
    assert sorted(order.tolist()) == list(range(8))
    pairs = list(zip(order[:4].tolist(), order[4:].tolist(), strict=True))
    expected = [(2 * i, 2 * i + 1) if interleaved else (i, i + rotated // 2) for i in range(rotated // 2)]
    assert pairs[: rotated // 2] == expected
    assert all(min(pair) >= rotated for pair in pairs[rotated // 2 :])


def test_scores_of_reordered_queries_and_keys_stay_the_same() -> None:
    """Rotated by the definition for neighbours, and in the new order as halves: the same products."""
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angles = torch.tensor([0.3, 1.1, 0.0, 0.0], dtype=torch.float64)
    order = rotary_order(8, 4, interleaved=True)

    def neighbours(x: torch.Tensor, position: int) -> torch.Tensor:
        pairs, turned = x[:4].view(2, 2), angles[:2] * position
        cos, sin = turned.cos(), turned.sin()
        first, second = pairs[:, 0] * cos - pairs[:, 1] * sin, pairs[:, 1] * cos + pairs[:, 0] * sin
        return torch.cat((torch.stack((first, second), 1).flatten(), x[4:]))

    def halves(x: torch.Tensor, position: int) -> torch.Tensor:
        first, second = x[order].chunk(2)
        cos, sin = (angles * position).cos(), (angles * position).sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin))

    assert halves(q, 5) @ halves(k, 2) == pytest.approx(neighbours(q, 5) @ neighbours(k, 2))
    assert halves(q, 5) @ halves(k, 2) != pytest.approx(halves(q, 5) @ halves(k, 3))
