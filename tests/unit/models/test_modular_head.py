"""Pooling of packed rows, by every mode, against each pair alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hiscore.models.cross_encoder import OLD_POOLINGS
from hiscore.models.modular_head import pool

OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.amax(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: torch.arange(1.0, len(x) + 1) @ x / torch.arange(1.0, len(x) + 1).sum(),
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize("mode", OLD_POOLINGS.values())
def test_a_pair_is_pooled_as_it_is_alone(mode: str) -> None:
    """Pairs of the padding, which have all rows that are left or none, change nothing."""
    torch.manual_seed(0)
    rows, lengths = torch.randn(20, 4), [3, 1, 7, 4]
    expected = torch.stack([OF_ONE[mode](pair) for pair in rows[:15].split(lengths)])
    padded = torch.tensor([*lengths, 5, 0, 0])
    torch.testing.assert_close(pool(rows, padded, [mode])[:4], expected)
    joined = pool(rows[:15], torch.tensor(lengths), [mode, "cls"])
    torch.testing.assert_close(joined, torch.cat([expected, rows[[0, 3, 4, 11]]], dim=1))
