"""Logits of labels and of the whole vocabulary."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hiscore.layers import lm_head
from hiscore.layers.lm_head import LMHead
from tests.support.heads import nowhere

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
    chosen = head.label_logits(labels(49, 0, 3), nowhere())(hidden)
    assert chosen.dtype == torch.float32
    torch.testing.assert_close(chosen.double(), expected[:, [49, 0, 3]], **bounds)
    torch.testing.assert_close(head.label_logits(None, nowhere())(hidden).double(), expected, **bounds)
    every = head.logits(hidden)
    assert every.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(every.double(), expected, **bounds)
    (probable,) = head.probabilities([(7, labels(49, 0, 3))], nowhere())(hidden)
    assert probable.dtype == torch.float32
    torch.testing.assert_close(probable.double(), expected.softmax(1)[:, [49, 0, 3]], **bounds)


GROUPS = [(3, labels(4)), (0, labels(1, 2)), (1, labels(0, 49, 0)), (3, labels(7, 8))]


@pytest.mark.parametrize("slice_", [1, 2, 3, 4, 7, 100])
def test_every_group_of_rows_gets_its_own_labels(slice_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden = LMHead(random(VOCABULARY, HIDDEN, seed=1), None), random(7, HIDDEN, seed=2)
    expected = head.logits(hidden).softmax(1)
    monkeypatch.setattr(lm_head, "ROW_SLICE", slice_)
    found = head.probabilities(GROUPS, nowhere())(hidden)
    assert [tuple(part.shape) for part in found] == [(3, 1), (0, 2), (1, 3), (3, 2)]
    start = 0
    for (rows, columns), part in zip(GROUPS, found, strict=True):
        torch.testing.assert_close(part, expected[start : start + rows, columns], atol=1e-6, rtol=1e-5)
        start += rows


CERTAIN = 2_000


def certain() -> tuple[LMHead, torch.Tensor]:
    """A head and hidden states with logits near 1,000, where float32 rounds by 6e-5."""
    return LMHead(random(VOCABULARY, 256, seed=1), None), 60 * random(CERTAIN, 256, seed=2)


def test_no_probability_exceeds_one_and_all_of_them_add_up_to_it() -> None:
    head, hidden = certain()
    (found,) = head.probabilities([(CERTAIN, labels(*range(VOCABULARY)))], nowhere())(hidden)
    assert found.max() == 1.0
    # Each rounded once, relative to itself.
    torch.testing.assert_close(found.double().sum(1), torch.ones(CERTAIN).double(), atol=1e-6, rtol=0)


def test_control_labels_and_normaliser_of_different_products_exceed_one() -> None:
    head, hidden = certain()
    exact = (hidden.double() @ head._weight.double().T).float()
    assert (exact - head.logits(hidden).logsumexp(1, keepdim=True)).exp().max() > 1.00001


def test_the_labels_used_last_stay_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "CACHED_LABEL_SETS", 2)
    monkeypatch.setattr(lm_head, "MAX_CACHED_LABELS", 3)
    head, hidden = LMHead(random(VOCABULARY, HIDDEN, seed=1), None), random(1, HIDDEN, seed=2)

    def cached() -> list[list[int]]:
        return [np.frombuffer(key, np.int32).tolist() for key in head._label_rows]

    for asked in (labels(1), labels(2), labels(1), labels(3)):
        head.label_logits(asked, nowhere())(hidden)
    assert cached() == [[1], [3]]
    head.label_logits(labels(4, 5, 6, 7), nowhere())(hidden)
    assert cached() == [[1], [3]]
    head.label_logits(labels(4, 5, 6), nowhere())(hidden)
    assert cached() == [[3], [4, 5, 6]]
    # What is cached is what was requested.
    again = head.label_logits(labels(4, 5, 6), nowhere())(hidden)
    torch.testing.assert_close(again, head.logits(hidden)[:, 4:7], atol=1e-5, rtol=0)


class Widest(TorchDispatchMode):
    """The most numbers that an operation inside gives in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float32:
            self.numbers = max(self.numbers, found.numel())
        return found


@pytest.mark.slow
@pytest.mark.parametrize("top", [None, 5])
def test_logits_of_the_vocabulary_exist_for_a_slice_of_rows_alone(top: int | None) -> None:
    """Whatever the rows: within the three slices that are planned (`models.activations.head_bytes`)."""
    vocabulary, slices = 4_096, []
    head = LMHead(torch.randn(vocabulary, 8), None)
    for rows in (300, 1_500):
        each, hidden = np.arange(rows), torch.randn(rows, 8)
        compute = head.token_logprobs(each, each.astype(np.int32), top, nowhere())
        with torch.inference_mode(), torch.profiler.profile(profile_memory=True) as profile:
            compute(hidden)
        found = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        found.sort(key=lambda event: event.start_ns())
        sizes = np.cumsum([event.nbytes() for event in found])
        slices.append(sizes.max() / (4 * lm_head.ROW_SLICE * vocabulary))
    assert 1 < slices[0] < 3
    assert slices[1] == pytest.approx(slices[0], abs=0.1)


def test_a_cpu_widens_a_head_in_bfloat16_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hidden = random(VOCABULARY, HIDDEN, seed=1).bfloat16(), random(2, HIDDEN, seed=2).bfloat16()
    head, widest = LMHead(weight, None), {}
    for numbers in (7 * HIDDEN, VOCABULARY * HIDDEN):
        monkeypatch.setattr(lm_head, "WIDENED_AT_ONCE", numbers)
        with torch.inference_mode(), Widest() as seen:
            found = head.logits(hidden)
        widest[numbers] = seen.numbers
        expected = hidden.double() @ weight.double().T
        # float32 sums of 12 products of numbers up to 3.
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    # The logits are 100 numbers. The control is the last: the whole head.
    assert list(widest.values()) == [2 * VOCABULARY, VOCABULARY * HIDDEN]
