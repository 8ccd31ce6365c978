"""Variants of the scorer must give its scores."""

import numpy as np
import pytest

from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.scoring import ablation_variants as variants

DELIMITER = 499

# Float32 sums in another order; scores are probabilities.
TOLERANCE = 2e-5


def scores(pending) -> np.ndarray:
    return np.concatenate([answer.scores for answer in pending.result()[0]])


def test_variants_give_the_scorers_scores(scorer: Scorer, calls: list[ScoreRequest]) -> None:
    expected = scores(scorer.submit(calls))
    assert np.abs(expected - np.roll(expected, 1, axis=0)).max() > 0.1  # a wrong row would show
    whole = variants.with_whole_vocabulary(scorer)
    np.testing.assert_allclose(scores(whole.submit(calls)), expected, atol=TOLERANCE, rtol=0)
    for sampled in (False, True):
        stepping = variants.with_decode_step(scorer, sampled)
        np.testing.assert_allclose(scores(stepping.submit(calls)), expected, atol=TOLERANCE, rtol=0)
    singles = [single for call in calls for single in variants.as_single_items(call)]
    np.testing.assert_allclose(scores(scorer.submit(singles)), expected, atol=TOLERANCE, rtol=0)


def test_delimiters_are_found_where_they_were_laid_out(scorer: Scorer, calls: list[ScoreRequest]) -> None:
    marked = [variants.mark(call, DELIMITER) for call in calls]
    expected = scores(scorer.submit(calls))
    np.testing.assert_array_equal(scores(variants.submit_indexed(scorer, marked)), expected)
    np.testing.assert_array_equal(scores(variants.submit_searching(scorer, marked, DELIMITER)), expected)
    # A call whose own token looks like a delimiter would be cut in the wrong place: it is refused.
    calls[0].prompt.tokens[3] = DELIMITER
    with pytest.raises(ValueError, match="499"):
        variants.mark(calls[0], DELIMITER)
