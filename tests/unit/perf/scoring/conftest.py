"""A scorer over a tiny checkpoint, and calls for it."""

import numpy as np
import pytest

from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.tiny_models import VOCABULARY

LABELS = np.array([5, 77], np.int32)


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
