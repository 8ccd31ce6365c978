"""Sampling draws from the distribution that the parameters describe, whatever else is in the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.scheduling.batch import uniform
from hiscore.decoding.worker.sampler import finite, greedy, sample, sample_batch

GRID = torch.arange(1 << 14, dtype=torch.float64) / (1 << 14)
"""Uniforms so close together that every token of a share above 1/16384 is drawn by one of them."""


def rows(logits: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same parameters for every row, in the scheduler's dtypes."""
    full = torch.full((len(logits),), temperature, dtype=torch.float32)
    return full, torch.full_like(full, top_k, dtype=torch.int32), torch.full_like(full, top_p)


def drawn(
    logits: Tensor,
    uniforms: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """What each uniform draws from one row of logits [V]."""
    every = logits.expand(len(uniforms), -1)
    return sample(
        every, *rows(every, temperature, top_k, top_p), uniforms, torch.full((len(uniforms),), min_p)
    )


def support(logits: Tensor, **parameters: float) -> set[int]:
    return set(drawn(logits, GRID, **parameters).tolist())  # type: ignore[arg-type]


def chi_square(ids: Tensor, probabilities: Tensor) -> float:
    expected = probabilities.double() * len(ids)
    counts = torch.bincount(ids, minlength=len(expected)).double()
    return float(((counts - expected) ** 2 / expected).sum())


def chi_square_bound(degrees: int) -> float:
    """Wilson and Hilferty's approximation of the quantile that one run in a million exceeds (4.753 sigma)."""
    return degrees * (1 - 2 / (9 * degrees) + 4.753 * math.sqrt(2 / (9 * degrees))) ** 3


# Draws of neighbouring seeds, and of neighbouring positions of one sequence.
UNIFORMS = {
    "seeds": torch.from_numpy(uniform(np.arange(100_000), 3)),
    "positions": torch.from_numpy(uniform(5, np.arange(100_000))),
}


@pytest.mark.parametrize("kind", UNIFORMS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(kind: str, temperature: float) -> None:
    logits = torch.linspace(-2, 2, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(0))]
    ids = drawn(logits, UNIFORMS[kind], temperature)
    assert chi_square(ids, torch.softmax(logits / temperature, -1)) < chi_square_bound(15)
    # The control: a temperature one twentieth higher is noticed.
    assert chi_square(ids, torch.softmax(logits / temperature / 1.05, -1)) > chi_square_bound(15)


@pytest.mark.parametrize("kind", UNIFORMS)
def test_what_is_left_is_renormalised(kind: str) -> None:
    logits = torch.linspace(2, -2, 16)
    left = torch.softmax(logits[:6], -1)
    ids = drawn(logits, UNIFORMS[kind], top_k=6)
    assert int(ids.max()) == 5
    assert chi_square(ids, left) < chi_square_bound(5)


LOGITS = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12, unique=True).map(torch.tensor)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(LOGITS, st.sampled_from([0.5, 1.0, 3.0]), st.integers(0, 14), st.integers(1, 1023))
def test_sets_are_those_of_transformers(logits: Tensor, temperature: float, top_k: int, parts: int) -> None:
    top_p = parts / 1024
    scores = TemperatureLogitsWarper(temperature)(None, logits[None])
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    ranked = torch.softmax(scores.double(), -1).sort(descending=True).values
    # Where a sum comes within float32's precision of top_p, transformers' own rounding decides.
    assume(bool(((ranked.cumsum(-1) - top_p).abs() > 1e-5).all()))
    # Nor may equal quotients of different logits be told apart, of which transformers keeps both.
    assume(len((logits / temperature).unique()) == len(logits))
    kept = torch.isfinite(TopPLogitsWarper(top_p)(None, scores))[0].nonzero()[:, 0].tolist()
    shares = torch.softmax(scores, -1)[0, kept] / torch.softmax(scores, -1)[0, kept].sum()
    assume(float(shares.min()) > 2 / len(GRID))
    assert support(logits, temperature=temperature, top_k=top_k, top_p=top_p) == set(kept)


def test_of_equal_logits_the_lower_ids_stay() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert support(logits, top_k=2) == {1, 3}
    assert support(logits, top_k=4) == {1, 3, 5, 0}
    # Three of the likelier have a share of 0.244 each.
    assert support(logits, top_p=0.25) == {1, 3}
    assert support(logits, top_p=0.2) == {1}
    assert greedy(logits[None]).tolist() == [1]
    # Many, which a sort that is not stable would mix.
    likelier = torch.arange(0, 10_000, 7)
    many = torch.zeros(10_000).index_fill(0, likelier, 1.0)
    assert set(drawn(many, GRID[::64], top_k=20).tolist()) == set(likelier[:20].tolist())
    assert greedy(-many[None]).tolist() == [1]


def test_a_share_that_is_reached_just_so_is_enough() -> None:
    assert support(torch.zeros(4), top_p=0.5) == {0, 1}
    assert support(torch.zeros(4), top_p=0.25) == {0}
    assert support(torch.zeros(4), top_p=1.0) == {0, 1, 2, 3}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert support(logits, top_p=0.65) == {0, 1}
    assert support(logits, top_k=2, top_p=0.55) == {0}  # 4/7 of what is left
    assert support(logits, top_p=0.55) == {0, 1}


def test_min_p_is_a_share_of_the_likeliest_and_comes_first() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert support(logits, min_p=0.0) == {0, 1, 2, 3}
    assert support(logits, min_p=0.3) == {0, 1, 2}
    assert support(logits, min_p=0.6) == {0, 1}
    assert support(logits, min_p=1.0) == {0}
    assert support(logits, min_p=0.6, top_p=0.55) == {0}  # 4/7 of what is left
    assert support(logits, top_p=0.55) == {0, 1}
    assert support(logits, min_p=0.6, temperature=2.0) == {0, 1, 2}  # after the temperature


@pytest.mark.slow
def test_a_larger_uniform_never_draws_a_lower_id() -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(1))
    ids = drawn(logits, GRID, top_k=300, top_p=0.95)
    assert bool((ids.diff() >= 0).all())


def mixed_batch(count: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(count, vocabulary, generator=generator) * 4
    temperature = torch.tensor([0.0, 0.3, 1.0, 1.7]).repeat(count)[:count]
    top_k = torch.tensor([0, 1, 50, 10**6, 3], dtype=torch.int32).repeat(count)[:count]
    top_p = torch.tensor([1.0, 0.9, 0.5]).repeat(count)[:count]
    return logits, temperature, top_k, top_p, torch.rand(count, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [1, 7, 1000, 49_152])
def test_a_row_does_not_depend_on_the_others(vocabulary: int) -> None:
    batch = mixed_batch(23, vocabulary)
    together = sample(*batch)
    alone = [sample(*(tensor[row : row + 1] for tensor in batch)) for row in range(23)]
    assert torch.equal(together, torch.cat(alone))
    order = torch.randperm(23, generator=torch.Generator().manual_seed(3))
    assert torch.equal(sample(*(tensor[order] for tensor in batch)), together[order])
    assert torch.equal(together[::4], greedy(batch[0][::4]))


def test_without_filters_the_sort_changes_nothing() -> None:
    logits, temperature, _, _, uniforms = mixed_batch(40, 5000)
    top_k, top_p = torch.zeros(40, dtype=torch.int32), torch.ones(40)
    sorted_ = sample(logits, temperature, top_k, top_p, uniforms)
    assert torch.equal(sample(logits, temperature, top_k, top_p, uniforms, filtered=False), sorted_)
    # The control: where a row has a filter, leaving it out would be noticed.
    assert not torch.equal(sample(logits, temperature, top_k + 1, top_p, uniforms), sorted_)


EDGE = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [2.0**-149, 1e-38, 1e-10])
def test_the_lowest_temperatures_leave_only_the_largest(temperature: float) -> None:
    assert drawn(torch.tensor([1.0, 3.0, 2.0, 3.0]), EDGE, temperature).tolist() == [1, 3]


@pytest.mark.parametrize("temperature", [1e38, math.inf])
def test_the_highest_temperatures_are_uniform_over_what_is_possible(temperature: float) -> None:
    logits = torch.tensor([-math.inf, 5.0, -math.inf, -5.0, 60.0, -math.inf])
    assert drawn(logits, EDGE, temperature).tolist() == [1, 4]
    assert support(logits, temperature=temperature) == {1, 3, 4}


@pytest.mark.parametrize("top_p", [0.0, 2.0**-149, 1e-6])
def test_the_smallest_top_p_leaves_one(top_p: float) -> None:
    assert support(torch.zeros(4), top_p=top_p) == {0}
    assert support(torch.tensor([0.0, 1.0]), top_p=top_p) == {1}


def test_the_largest_uniform_draws_the_last_token_of_a_flat_row() -> None:
    for vocabulary in (3, 128, 131_072, 200_003, 2**20 + 1):
        assert drawn(torch.zeros(vocabulary), EDGE).tolist() == [0, vocabulary - 1]


def test_what_is_not_finite_is_named_and_still_gives_an_id() -> None:
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[0, nan, 1], [inf, 0, 1], [inf, inf, 0], [-inf] * 3, [nan] * 3, [-inf, 0, -inf]])
    assert finite(logits).tolist() == [False] * 5 + [True]
    for temperature in (0.0, 1.0):
        for filtered in (True, False):
            arguments = rows(logits, temperature, 2, 0.5)
            ids = sample(logits, *arguments, torch.full((6,), 0.7, dtype=torch.float64), filtered=filtered)
            assert bool(((ids >= 0) & (ids < 3)).all())
            assert int(ids[-1]) == 1


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (1, 1.0)])
def test_a_batch_is_sampled_if_one_row_is_and_filtered_if_one_row_is(top_k: int, top_p: float) -> None:
    """Probabilities 0.6 and 0.4, draws at 0.9: the first row is greedy, only the last is filtered to one token."""
    logits = torch.tensor([[0.6, 0.4]]).log().repeat(3, 1)
    sampling = SamplingBatch(
        np.array([0, 1, 1], np.float32),
        np.array([0, 0, top_k], np.int32),
        np.array([1, 1, top_p], np.float32),
        np.full(3, 0.9),
    )
    assert sample_batch(logits, sampling).tolist() == [0, 1, 0]
