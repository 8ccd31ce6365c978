"""Scores from what the head computed: definitions, extremes, and numbers that are not finite."""

import numpy as np
import pytest

from hiscore.errors import Code, RequestError
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.results.readout import PairScores, scores_from_head

LOGITS = np.array([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]], np.float32)


def test_a_classifiers_logits_softmax_and_sigmoid() -> None:
    np.testing.assert_array_equal(scores_from_head(LOGITS, ScoreOptions(), True), LOGITS)
    softmax = ScoreOptions(apply_softmax=True)
    assert scores_from_head(LOGITS, softmax, True).sum(axis=1) == pytest.approx([1, 1])
    one = np.array([[-1_000.0], [0.0], [3.0]], np.float32)
    assert scores_from_head(one, softmax, True).ravel() == pytest.approx([0, 0.5, 1 / (1 + np.exp(-3.0))])


EXTREME = np.array([[500.0, -500.0, 499.0]], np.float32)


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300, 0.01, 100.0, 1e300])
def test_extreme_temperatures_give_probabilities(temperature: float) -> None:
    """500 / 1e-308 is beyond float64, and the difference of two infinities would be no number."""
    scores = scores_from_head(EXTREME, ScoreOptions(True, temperature), False)
    assert scores.sum() == pytest.approx(1)
    assert scores[0, 0] >= scores[0, 2] >= scores[0, 1]
    options = ScoreOptions(True, temperature, log_scores=True)
    own = PairScores(np.array([3]), 3, options)
    for logs in (
        scores_from_head(EXTREME, options, False),
        own.of(EXTREME[0]),
        own.of_logs(EXTREME[0] * 1.0),
    ):
        assert np.isfinite(logs).all()  # JSON has no infinity
        np.testing.assert_allclose(np.exp(logs), scores, rtol=1e-5, atol=1e-6)
    logs = scores_from_head(EXTREME.T, options, True)
    assert np.isfinite(logs).all()


def test_the_highest_logits_share_everything_at_a_tiny_temperature() -> None:
    logits = np.array([[-7.0, -7.0, -8.0], [3.0, 2.0, 1.0]], np.float32)
    scores = scores_from_head(logits, ScoreOptions(True, 1e-308), False)
    assert scores.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]


def test_a_temperature_that_overflows_saturates_a_sigmoid() -> None:
    one = np.array([[500.0], [0.0], [-500.0]], np.float32)
    scores = scores_from_head(one, ScoreOptions(True, 1e-308), True)
    assert scores.ravel().tolist() == [1.0, 0.5, 0.0]


def test_one_label_under_softmax_is_certain_and_no_item_gives_no_row() -> None:
    softmax = ScoreOptions(apply_softmax=True)
    assert scores_from_head(LOGITS[:, :1], softmax, False).tolist() == [[1.0], [1.0]]
    assert scores_from_head(LOGITS[:0], softmax, False).shape == (0, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("softmax", [True, False])
def test_what_is_not_finite_is_an_error(value: float, softmax: bool) -> None:
    logits = LOGITS.copy()
    logits[1, 2] = value
    with pytest.raises(RequestError) as error:
        scores_from_head(logits, ScoreOptions(apply_softmax=softmax), False)
    assert error.value.code is Code.INTERNAL


@pytest.mark.parametrize("options", [ScoreOptions(), ScoreOptions(True), ScoreOptions(True, 0.5)])
@pytest.mark.parametrize("counts", [[3, 3], [3, 1], [2], []])
def test_labels_of_items_own_have_scores_of_each_item_alone(options: ScoreOptions, counts: list[int]) -> None:
    """As many labels in each item, or some columns that are filled up."""
    values = np.linspace(-2, 3, sum(counts), dtype=np.float32)
    columns = max(counts, default=0)
    found = PairScores(np.array(counts, np.int64), columns, options).of(values)
    assert (found.shape, found.dtype) == ((len(counts), columns), np.float32)
    for row, count, end in zip(found, counts, np.cumsum(counts), strict=True):
        alone = scores_from_head(values[None, end - count : end], options, False)[0]
        np.testing.assert_allclose(row[:count], alone, rtol=1e-6)  # float32's rounding, and one more sum's
        assert not row[count:].any()


def test_a_temperature_of_one_divides_by_one() -> None:
    """It is left out: the bits are those of a division."""
    values = np.array([3.25, -1.5, 0.75, 1e-3], np.float32)
    found = PairScores(np.array([4]), 4, ScoreOptions(True)).of(values)
    powers = np.exp((values.astype(np.float64) - values.max()) / 1.0)
    assert found.tobytes() == (powers / np.add.reduceat(powers, [0])).astype(np.float32).tobytes()
