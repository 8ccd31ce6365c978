"""Variants of the scorer must give its scores."""

import numpy as np
import pytest

from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.scoring import ablation_variants as variants
from tests.support.tiny_models import VOCABULARY

LABELS = np.array([5, 77], np.int32)

DELIMITER = 499

# Float32 sums in another order; scores are probabilities.
TOLERANCE = 2e-5


def make_call(rng: np.random.Generator, query: int, items: list[int]) -> ScoreRequest:
    tokens = rng.integers(0, VOCABULARY - 1, query + sum(items)).astype(np.int32)
    return ScoreRequest(
        MultiItemPrompt(tokens, query, np.array(items)), LABELS, ScoreOptions(apply_softmax=True)
    )


@pytest.fixture(scope="module")
def scorer(checkpoints) -> Scorer:
    return Scorer(checkpoints("qwen3")[0], "cpu", "float32", 1_024, query_cache_bytes=0)


@pytest.fixture
def calls() -> list[ScoreRequest]:
    rng = np.random.default_rng(0)
    return [make_call(rng, 21, [7, 3, 0, 11]), make_call(rng, 5, [4]), make_call(rng, 0, [6, 2])]


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
