"""Under load an item's score is what it is alone: threads, batches, parts and the cache change nothing."""

from dataclasses import replace

import numpy as np
import pytest

from hiscore.scoring import decoder_scorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing.packing import Batch, pack
from hiscore.scoring.requests.options import ScoreOptions
from tests.support.comparison import INVARIANCE
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY
from tests.support.under_load import scores_alone, scores_under_load

pytestmark = pytest.mark.slow

BUDGET = 256
OPTIONS = ScoreOptions(apply_softmax=True)


def mixed_calls() -> list[Tokens]:
    """Of 3 to 600 tokens; every fourth shares its query with others, and long ones are computed in parts."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, VOCABULARY, 70).tolist()
    calls = []
    for index in range(24):
        items = rng.integers(1, 30, int(rng.choice([1, 4, 30]))).tolist()
        call = random_tokens(rng, int(rng.integers(2, 90)), items, VOCABULARY)
        calls.append(Tokens(shared, call.items) if index % 4 == 0 else call)
    return calls


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_scores_under_load_are_those_alone(family: str, checkpoints) -> None:
    """To `INVARIANCE`: products over other numbers of rows may add in another order on a CPU."""
    scorer = load_decoder_scorer(checkpoints(family)[0], "cpu", "float32", BUDGET, query_cache_bytes=2**20)
    calls = mixed_calls()
    found, stats = scores_under_load(scorer, calls, OPTIONS, BUDGET)
    assert stats.cached_tokens > 0
    assert stats.forwards >= sum(len(call.prompt().tokens) for call in calls) / BUDGET / 2
    alone = scores_alone(
        load_decoder_scorer(checkpoints(family)[0], "cpu", "float32", BUDGET, 0), calls, OPTIONS
    )
    for scores, truth in zip(found, alone, strict=True):
        np.testing.assert_allclose(scores, truth, atol=INVARIANCE, rtol=0)


def neighbours_rows(prompts, budget: int, pages, longrope) -> Batch:
    """The rows of a batch with several segments, read one row further."""
    batch = pack(prompts, budget, pages, longrope)
    return replace(
        batch,
        forwards=tuple(
            forward._replace(scored_rows=np.roll(forward.scored_rows, 1)) for forward in batch.forwards
        ),
    )


@pytest.mark.exhaustive
def test_control_rows_of_another_item_are_noticed(checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a race of two batches would do: here on purpose, and invisible to a call that is alone."""
    checkpoint, _ = checkpoints("llama")
    calls = mixed_calls()
    alone = scores_alone(load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, 0), calls, OPTIONS)
    monkeypatch.setattr(decoder_scorer, "pack", neighbours_rows)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, query_cache_bytes=2**20)
    found, _ = scores_under_load(scorer, calls, OPTIONS, BUDGET)
    assert max(np.abs(scores - truth).max() for scores, truth in zip(found, alone, strict=True)) > INVARIANCE
