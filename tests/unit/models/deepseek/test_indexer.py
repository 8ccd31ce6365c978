"""The lightning indexer: scores by their definition, selections to the last tie."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hiscore.models.deepseek.indexer import select_positions


def best(scores: list[float], length: int, k: int) -> list[int]:
    """The definition: the k largest, ties to the lower position."""
    order = sorted(range(length), key=lambda position: (-scores[position], position))
    return sorted(order[:k])


def selected(scores: Tensor, lengths: list[int], k: int) -> list[list[int]]:
    positions, counts = select_positions(scores, torch.tensor(lengths), k)
    assert positions.dtype == counts.dtype == torch.int32
    assert positions.shape == (len(scores), min(k, scores.shape[1]))
    for row, count in zip(positions.tolist(), counts.tolist(), strict=True):
        assert row[count:] == [-1] * (len(row) - count)
    return [row[:count] for row, count in zip(positions.tolist(), counts.tolist(), strict=True)]


@st.composite
def ties(draw: st.DrawFn) -> tuple[Tensor, list[int], int]:
    """Scores of few values, both zeros among them, and rows of any length."""
    width, rows = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5])
    scores = draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=rows, max_size=rows))
    lengths = draw(st.lists(st.integers(1, width), min_size=rows, max_size=rows))
    return torch.tensor(scores), lengths, draw(st.integers(1, 45))


@given(ties())
def test_selects_the_largest_with_ties_to_the_lower_position(case: tuple[Tensor, list[int], int]) -> None:
    scores, lengths, k = case
    expected = [best(row, n, k) for row, n in zip(scores.tolist(), lengths, strict=True)]
    assert selected(scores, lengths, k) == expected


def test_a_tie_broken_the_other_way_is_told_apart() -> None:
    """Control: the same scores read backwards prefer the higher position."""
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0, 2.0, 0.0]])
    assert selected(scores, [6], 3) == [[0, 1, 4]]
    backwards = [[5 - position for position in reversed(row)] for row in selected(scores.flip(1), [6], 3)]
    assert backwards == [[0, 4, 5]]


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_what_lies_beyond_a_row_is_never_selected(rubbish: float) -> None:
    scores = torch.tensor([[1.0, 3.0, rubbish, rubbish], [0.0, 0.0, 1.0, rubbish]])
    assert selected(scores, [2, 3], 2) == [[0, 1], [0, 2]]
    assert selected(scores, [2, 3], 4) == [[0, 1], [0, 1, 2]]
