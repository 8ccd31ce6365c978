"""States of gated delta nets in packed scoring, handed on from queries to items, over forwards and batches."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.recurrence.metadata import CHUNK, ITEM_SLOT, QUERY_SLOT, ZERO_SLOT, StatePlan
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing import packing
from hiscore.scoring.packing.packed_prompt import QueryStates
from hiscore.scoring.packing.state_spans import StatesOfForward
from hiscore.scoring.scorer import Scorer
from tests.support.comparison import INVARIANCE, check
from tests.support.scoring import LABELS, SOFTMAX, request, score
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiny_models import VOCABULARY
from tests.support.truth import Truth

pytestmark = pytest.mark.slow
FAMILY = "qwen3-hybrid"
# Queries and items of more than a chunk, cut over forwards; queries of other lengths; equal beginnings.
BEGINNING = random_tokens(np.random.default_rng(1), 150, [], VOCABULARY).query
BATCH = [
    random_tokens(np.random.default_rng(2), 130, [150, 3, 1, 0, 70], VOCABULARY),
    Tokens([*BEGINNING, 3, 4], [[5], [6, 7]]),
    Tokens(BEGINNING, [[8] * 9]),
    random_tokens(np.random.default_rng(3), 0, [200, 5], VOCABULARY),
    random_tokens(np.random.default_rng(4), 1, [1, 1], VOCABULARY),
    Tokens(BEGINNING + [9] * 70, [[5] * 65]),
]


def assert_true(scorer: Scorer, truth: Truth, batch: Sequence[Tokens]) -> None:
    for call, scores in zip(batch, score(scorer, batch, SOFTMAX), strict=True):
        if call.items:
            check(scores, truth.scores(call.query, call.items, LABELS, apply_softmax=True))


@pytest.mark.parametrize("budget", [CHUNK, 200])
def test_scores_equal_transformers_however_forwards_are_cut(budget: int, checkpoints) -> None:
    """In a first batch and in one that finds the states of the first."""
    checkpoint, truth = checkpoints(FAMILY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", budget)
    for _ in range(3):
        assert_true(scorer, truth, BATCH)
    for call in BATCH:
        assert_true(scorer, truth, [call])


def test_a_score_is_that_of_the_call_alone_and_of_an_empty_cache(checkpoints) -> None:
    checkpoint, _ = checkpoints(FAMILY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 200)
    without = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096, query_cache_bytes=0)
    for _ in range(2):
        for call, together in zip(BATCH, score(scorer, BATCH, SOFTMAX), strict=True):
            (alone,) = score(without, [call], SOFTMAX)
            np.testing.assert_allclose(together, alone, rtol=0, atol=INVARIANCE)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(
        st.lists(tokens(VOCABULARY, longest=140, most=4), min_size=1, max_size=3), min_size=1, max_size=2
    ),
    beginning=st.integers(0, len(BEGINNING)),
    budget=st.sampled_from([CHUNK, 130, 4_096]),
)
def test_any_shapes_equal_transformers(
    batches: list[list[Tokens]], beginning: int, budget: int, checkpoints
) -> None:
    checkpoint, truth = checkpoints(FAMILY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", budget)
    for batch in batches:
        assert_true(scorer, truth, [Tokens(BEGINNING[:beginning] + each.query, each.items) for each in batch])


def test_a_shared_beginning_is_found_by_the_third_query(checkpoints) -> None:
    """The second one shows where it ends, and leaves its state there."""
    checkpoint, _ = checkpoints(FAMILY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    cached = []
    for end in range(3):
        call = Tokens(BEGINNING + [end] * 60, [[5]])
        answers, _ = scorer.score([request(scorer, call, SOFTMAX)])
        cached.append(answers[0].cached_tokens)
    # The first 150 tokens are equal: two chunks of them.
    assert cached == [0, 0, 2 * CHUNK]


def test_forwards_smaller_than_a_chunk_are_refused_at_the_start(checkpoints) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="MAX_BATCH_TOKENS is 63"):
        load_decoder_scorer(checkpoints(FAMILY)[0], "cpu", "float32", CHUNK - 1)


Change = Callable[[StatePlan], StatePlan]


def with_starts(wrong: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(plan: StatePlan) -> StatePlan:
        batches = [batch._replace(starts=wrong(batch.starts)) for batch in plan.batches]
        return plan._replace(batches=tuple(batches))

    return change


def loaded_from(slot: int, other: int) -> Change:
    return lambda plan: plan._replace(loaded=np.where(plan.loaded == slot, other, plan.loaded))


@pytest.mark.parametrize(
    "change",
    [
        with_starts(lambda starts: np.roll(starts, 1)),
        with_starts(lambda starts: np.zeros_like(starts)),
        loaded_from(QUERY_SLOT, ZERO_SLOT),
        loaded_from(ITEM_SLOT, QUERY_SLOT),
        loaded_from(QUERY_SLOT, ITEM_SLOT),
    ],
    ids=["of another", "of none", "no query over forwards", "an item begins again", "a query of an item"],
)
def test_control_another_state_shows(change: Change, checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, truth = checkpoints(FAMILY)
    right = StatesOfForward.plan
    monkeypatch.setattr(StatesOfForward, "plan", lambda self: change(right(self)))
    with pytest.raises(AssertionError):
        assert_true(load_decoder_scorer(checkpoint, "cpu", "float32", 200), truth, BATCH)


def test_control_a_state_kept_at_another_place_shows(checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept a chunk before its boundary, as the next batch finds."""
    checkpoint, truth = checkpoints(FAMILY)
    right = packing._acquire

    def acquire(*given):
        slots, hit, (first, kept) = right(*given)
        return (
            slots,
            hit,
            QueryStates(first, {place - CHUNK or CHUNK // 2: slot for place, slot in kept.items()}),
        )

    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    with monkeypatch.context() as patched:
        patched.setattr(packing, "_acquire", acquire)
        assert_true(scorer, truth, BATCH)
    with pytest.raises(AssertionError):
        assert_true(scorer, truth, BATCH)
