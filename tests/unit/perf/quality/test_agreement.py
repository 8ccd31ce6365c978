"""The quality table's numbers against their definitions."""

import numpy as np
import pytest

from perf.quality.agreement import auc, auc_gain_interval, auc_interval, mid_ranks, same_best, spearman


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, and classes that they separate in part."""
    rng = np.random.default_rng(seed)
    positive = rng.random(count) < 0.4
    return np.round(rng.normal(positive * 1.0, 1.0), 1), positive


def test_auc_counts_pairs_and_halves_ties() -> None:
    scores, positive = drawn(80)
    pairs = scores[positive][:, None] - scores[~positive][None]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert (pairs == 0).any()
    assert auc(scores, positive) == pytest.approx(expected, abs=1e-12)
    assert auc(-scores, positive) == pytest.approx(1 - expected, abs=1e-12)
    assert auc(np.zeros(80), positive) == 0.5
    with pytest.raises(ValueError, match="both classes"):
        auc(scores, np.ones(80, bool))


def test_ranks_are_shared_and_spearman_sees_order_alone() -> None:
    np.testing.assert_array_equal(mid_ranks(np.array([3.0, 1.0, 3.0, 7.0])), [2.5, 1.0, 2.5, 4.0])
    values = np.random.default_rng(1).random(50)
    assert spearman(values, np.exp(5 * values)) == pytest.approx(1.0)
    assert spearman(values, -values) == pytest.approx(-1.0)
    assert np.isnan(spearman(values, np.zeros(50)))


def test_the_interval_holds_the_true_value_as_often_as_it_says() -> None:
    """Normal classes one apart have an AUC of Phi(1 / sqrt(2)) = 0.7602; 32 of 40 are 4 sigma below 38."""
    held = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        positive = np.arange(200) < 100
        found = auc_interval(rng.normal(positive * 1.0, 1.0), positive, resamples=200)
        assert found.low < found.value < found.high
        held += found.low < 0.7602 < found.high
    assert 32 <= held < 40


def test_a_gain_is_resampled_in_pairs() -> None:
    scores, positive = drawn(400)
    same = auc_gain_interval(scores, scores, positive, resamples=50)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    noisy = scores + np.random.default_rng(2).normal(0, 0.1, 400)
    paired = auc_gain_interval(noisy, scores, positive, resamples=200)
    single = auc_interval(scores, positive, resamples=200)
    # What both share cancels: far narrower than either AUC's own interval.
    assert paired.high - paired.low < 0.3 * (single.high - single.low)


def test_the_best_of_each_whole_group_is_compared() -> None:
    a = np.array([1.0, 5, 2, 9, 8, 7, 3])
    b = np.array([0.0, 3, 1, 1, 8, 7, 9])
    assert same_best(a, b, 3) == 0.5
    assert same_best(a, a, 3) == 1.0
    assert np.isnan(same_best(a, a, 8))
