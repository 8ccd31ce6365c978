"""Logits of labels and of the whole vocabulary."""

import numpy as np
import pytest
import torch

from hiscore.layers import lm_head
from hiscore.layers.lm_head import LMHead

HIDDEN, VOCABULARY = 12, 50


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_labels_have_the_logits_of_their_rows(dtype: torch.dtype, cap: float | None) -> None:
    weight, hidden = random(VOCABULARY, HIDDEN, seed=1).to(dtype), random(7, HIDDEN, seed=2).to(dtype)
    expected = hidden.double() @ weight.double().T
    if cap is not None:
        expected = torch.tanh(expected / cap) * cap
    head = LMHead(weight, cap)
    # float32 sums of 12 products of numbers up to 3.
    bounds = {"atol": 1e-5, "rtol": 0}
    chosen = head.label_logits(hidden, labels(49, 0, 3))
    assert chosen.dtype == torch.float32
    torch.testing.assert_close(chosen.double(), expected[:, [49, 0, 3]], **bounds)
    torch.testing.assert_close(head.label_logits(hidden, None).double(), expected, **bounds)
    every = head.logits(hidden)
    assert every.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(every.double(), expected, **bounds)
    torch.testing.assert_close(head.log_normaliser(hidden).double(), expected.logsumexp(1), **bounds)


def test_the_normaliser_is_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden = LMHead(random(VOCABULARY, HIDDEN, seed=1), None), random(7, HIDDEN, seed=2)
    whole = head.log_normaliser(hidden)
    monkeypatch.setattr(lm_head, "ROW_SLICE", 3)
    torch.testing.assert_close(head.log_normaliser(hidden), whole, atol=1e-5, rtol=0)
    assert head.log_normaliser(hidden).shape == (7,)


def test_the_labels_used_last_stay_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "CACHED_LABEL_SETS", 2)
    monkeypatch.setattr(lm_head, "MAX_CACHED_LABELS", 3)
    head, hidden = LMHead(random(VOCABULARY, HIDDEN, seed=1), None), random(1, HIDDEN, seed=2)

    def cached() -> list[list[int]]:
        return [np.frombuffer(key, np.int32).tolist() for key in head._label_rows]

    for asked in (labels(1), labels(2), labels(1), labels(3)):
        head.label_logits(hidden, asked)
    assert cached() == [[1], [3]]
    head.label_logits(hidden, labels(4, 5, 6, 7))
    assert cached() == [[1], [3]]
    head.label_logits(hidden, labels(4, 5, 6))
    assert cached() == [[3], [4, 5, 6]]
    # What is cached is what was requested.
    again = head.label_logits(hidden, labels(4, 5, 6))
    torch.testing.assert_close(again, head.logits(hidden)[:, 4:7], atol=1e-5, rtol=0)
