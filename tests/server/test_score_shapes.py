"""Shapes and ids at the edges, through the real `scorer`."""

from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.scoring.requests.layout import lay_out
from hiscore.scoring.requests.request import MultiItemPrompt
from tests.server.wire import WAYS, score, score_tokens
from tests.support.comparison import INVARIANCE, check, truth_of
from tests.support.strategies import Tokens, random_tokens
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


def test_one_token_beside_two_thousand(lm: Server, tiny_lm: Path) -> None:
    for sizes in ((20, [1, 2_000, 1]), (2_000, [1, 2, 0])):
        call = random_tokens(np.random.default_rng(2), *sizes, VOCABULARY)
        check(
            score_tokens(lm, call, LABELS).scores,
            truth_of(tiny_lm).scores(call.query, call.items, LABELS),
            over_vocabulary=True,
        )


def test_only_query_and_one_item_must_fit_the_context(lm: Server, tiny_lm: Path) -> None:
    """4,096 tokens of context, and a call of nearly three times that."""
    call = random_tokens(np.random.default_rng(3), 96, [4_000, 1, 4_000, 3_000], VOCABULARY)
    found = score_tokens(lm, call, LABELS).scores
    check(found[:2], truth_of(tiny_lm).scores(call.query, call.items[:2], LABELS), over_vocabulary=True)


@pytest.mark.parametrize("items", [0, 1, 3])
def test_an_empty_query(items: int, lm: Server, tiny_lm: Path) -> None:
    call = Tokens([], [[4, 5, 6], [7], [8, 9]][:items])
    answer = score_tokens(lm, call, LABELS)
    assert answer.scores.shape == (items, 3)
    if items:
        expected = truth_of(tiny_lm).scores([], call.items, LABELS)
        check(answer.scores, expected, over_vocabulary=True)


def test_any_id_is_content(lm: Server, tiny_lm: Path) -> None:
    """bos, eos, 0, the tokenizer's special tokens and the last id, as query, item and label."""
    call = Tokens([1, 2, 0, 2, 499], [[2], [1, 1], [0, 0, 2], [2, 2], [499], []])
    labels = [0, 1, 2, 499]
    expected = truth_of(tiny_lm).scores(call.query, call.items, labels)
    check(score_tokens(lm, call, labels).scores, expected, over_vocabulary=True)


@pytest.mark.parametrize("filler", [9_999, -1, 2**31 - 1, -(2**31), 0])
def test_the_id_at_a_delimiter_is_never_looked_at(filler: int, lm: Server, tiny_lm: Path) -> None:
    call = Tokens([11, 12, 13], [[21, 22], [], [31]])
    ids, indices = lay_out(MultiItemPrompt.of(call.query, call.items))
    ids[indices] = filler
    inputs = {"input_ids": ids, "delimiter_indices": indices, "label_token_ids": LABELS}
    inputs = {name: np.asarray(values, np.int32)[None] for name, values in inputs.items()}
    expected = truth_of(tiny_lm).scores(call.query, call.items, LABELS)
    check(score(lm, "scorer", inputs, (3, 3)).scores, expected, over_vocabulary=True)


def test_the_delimiters_id_inside_of_texts_is_content(lm: Server, tiny_lm: Path) -> None:
    """Were delimiters searched for, these would end an item early."""
    call = Tokens([0, 11, 0], [[0, 0], [21, 0, 22], [0]])
    expected = truth_of(tiny_lm).scores(call.query, call.items, LABELS)
    check(score_tokens(lm, call, LABELS).scores, expected, over_vocabulary=True)


def test_permuted_items_have_permuted_scores(lm: Server) -> None:
    rng = np.random.default_rng(4)
    call = random_tokens(rng, 40, rng.integers(0, 30, 100).tolist(), VOCABULARY)
    order = rng.permutation(100)
    scores = score_tokens(lm, call, LABELS, apply_softmax=True).scores
    permuted = score_tokens(
        lm, Tokens(call.query, [call.items[place] for place in order]), LABELS, apply_softmax=True
    ).scores
    np.testing.assert_allclose(permuted, scores[order], atol=INVARIANCE, rtol=0)
    # Control: the order matters.
    assert np.abs(permuted - scores).max() > 100 * INVARIANCE
