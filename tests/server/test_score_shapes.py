"""Shapes and ids at the edges, through the real `scorer`."""

from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.wire import WAYS, score_tokens
from tests.support.comparison import check, truth_of
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]


@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_items(way: str, lm: Server, tiny_lm: Path) -> None:
    call = random_tokens(np.random.default_rng(1), 30, [3] * 1_000, VOCABULARY)
    answer = score_tokens(lm, call, LABELS, way)
    # A wrong order would show in any of these.
    some = [0, 1, 499, 998, 999]
    expected = truth_of(tiny_lm).scores(call.query, [call.items[place] for place in some], LABELS)
    check(answer.scores[some], expected, over_vocabulary=True)
    assert answer.prompt_tokens == 3_030


def test_only_query_and_one_item_must_fit_the_context(lm: Server, tiny_lm: Path) -> None:
    """4,096 tokens of context, and a call of nearly three times that."""
    call = random_tokens(np.random.default_rng(3), 96, [4_000, 1, 4_000, 3_000], VOCABULARY)
    found = score_tokens(lm, call, LABELS).scores
    check(found[:2], truth_of(tiny_lm).scores(call.query, call.items[:2], LABELS), over_vocabulary=True)
