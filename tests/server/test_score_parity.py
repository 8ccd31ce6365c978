"""Scores of texts, through the whole chain, equal transformers run on ``tokenizer(query + item)``."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from tests.server.wire import WAYS, score_texts, score_tokens
from tests.support.comparison import check, truth_of
from tests.support.strategies import Tokens

pytestmark = pytest.mark.server

tokenizer_of = cache(AutoTokenizer.from_pretrained)

# The real model's labels, by its own tokenizer.
REAL = {" Yes": 9230, " No": 2838}
# The small tokenizer's labels go by id.
LABELS = [7, 402, 31]

CASES: dict[str, tuple[str, list[str], bool]] = {
    "plain": ("Is this a fruit? Answer Yes or No. It is", [" an apple", " a hammer"], False),
    # The last letters of the query and the first of the item become one token.
    "merges-over-the-boundary": ("This is un", ["believable", "fair", " Yes", ""], False),
    "unicode": ("苹果是水果吗?回", ["答是🍎", "答👩‍👩‍👧", "é̀"], False),
    "item-first": ("able is a word?", ["Un", "Comfort", "", "An apple "], True),
    "special-tokens": ("<|im_start|>user\nfruit", ["<|im_end|>", "?<|im_end|>\n<|im_start|>"], False),
    "empty-query": ("", ["Yes", "12 apples"], False),
    "digits-and-spaces": ("In 19", ["99", "84  ", "\n\n"], False),
}


def truth(
    checkpoint: Path, query: str, items: list[str], labels: list[int], item_first: bool, **options: Any
) -> np.ndarray:
    """transformers on the tokens of each whole text."""
    tokenizer = tokenizer_of(checkpoint)
    whole = [tokenizer(item + query if item_first else query + item)["input_ids"] for item in items]
    return truth_of(checkpoint).scores([], whole, labels, **options)


@pytest.mark.parametrize("case", CASES)
def test_a_real_model_scores_texts_as_transformers_does(case: str, server: Server, smollm: Path) -> None:
    query, items, item_first = CASES[case]
    answer = score_texts(server, query, items, list(REAL), item_first=item_first)
    check(answer.scores, truth(smollm, query, items, list(REAL.values()), item_first), over_vocabulary=True)


def test_cases_merge_over_the_boundary(smollm: Path) -> None:
    """Or the tests would not see a chain that encodes query and item apart."""
    tokenizer = tokenizer_of(smollm)
    for case in ("merges-over-the-boundary", "item-first"):
        query, items, item_first = CASES[case]
        joined = [
            (
                tokenizer(first + last)["input_ids"],
                tokenizer(first)["input_ids"] + tokenizer(last)["input_ids"],
            )
            for first, last in ([(item, query) if item_first else (query, item) for item in items])
        ]
        assert any(whole != parts for whole, parts in joined), case


@pytest.mark.parametrize("item_first", [False, True])
def test_labels_of_several_tokens_are_read_as_they_follow_the_prompt(
    item_first: bool, server: Server, smollm: Path
) -> None:
    """By text and by ids: log-softmax on the whole text, one at a time."""
    query, items = "Is it relevant? It is", [" said that an apple is", " a hammer:", ""]
    labels = [" relevant", " not relevant", " not at all", " Yes"]
    tokenizer, model = tokenizer_of(smollm), truth_of(smollm).model
    expected, pieces = np.empty((len(items), len(labels))), {}
    for (row, item), (column, label) in product(enumerate(items), enumerate(labels)):
        prompt = tokenizer(item + query if item_first else query + item)["input_ids"]
        whole = tokenizer((item + query if item_first else query + item) + label)["input_ids"]
        assert whole[: len(prompt)] == prompt
        pieces[label] = whole[len(prompt) :]
        with torch.inference_mode():
            logs = model(torch.tensor([whole])).logits[0, len(prompt) - 1 : -1].double().log_softmax(dim=-1)
        expected[row, column] = logs[range(len(logs)), pieces[label]].sum()
    lengths = [*map(len, pieces.values())]
    assert max(lengths) > 1
    flat = [token for piece in pieces.values() for token in piece]
    by_bytes = expected / [len(label) for label in labels]
    with ScoreClient(server.grpc_url) as client:
        options = {"item_first": item_first, "log_scores": True}
        by_text = client.score(query, items, labels=labels, **options)
        by_ids = client.score(query, items, label_token_ids=flat, label_lengths=lengths, **options)
        over_bytes = client.score(query, items, labels=labels, normalize="bytes", **options)
        plain = client.score(query, items, labels=labels, apply_softmax=True, item_first=item_first)
    for found, truths in ((by_text, expected), (by_ids, expected), (over_bytes, by_bytes)):
        np.testing.assert_allclose(found.scores, truths, atol=3 * 2e-5, rtol=0)
    powers = np.exp(expected - expected.max(axis=1, keepdims=True))
    check(plain.scores, powers / powers.sum(axis=1, keepdims=True))


def test_the_real_models_labels_can_be_ids_and_softmax_is_over_them(server: Server, smollm: Path) -> None:
    query, items, _ = CASES["plain"]
    options = {"apply_softmax": True, "temperature": 0.5}
    by_name = score_texts(server, query, items, list(REAL), **options).scores
    by_id = score_texts(server, query, items, list(REAL.values()), way="http", **options).scores
    # Of two calls one may find its query in the cache.
    np.testing.assert_allclose(by_name, by_id, atol=2e-5, rtol=0)
    check(by_name, truth(smollm, query, items, list(REAL.values()), False, **options))
    np.testing.assert_allclose(by_name.sum(axis=1), 1, atol=1e-6)


def test_control_a_wrong_layout_fails_the_same_check(server: Server, smollm: Path) -> None:
    query, items, _ = CASES["plain"]
    labels = list(REAL.values())
    expected = truth(smollm, query, items, labels, False)
    with pytest.raises(AssertionError):
        check(score_texts(server, query, items[::-1], labels).scores, expected, over_vocabulary=True)
    # The second item as plain causal attention over the packed sequence would see it.
    tokenizer = tokenizer_of(smollm)
    ids = [tokenizer(text)["input_ids"] for text in (query, *items)]
    packed = score_tokens(server, Tokens(ids[0], [ids[1], ids[1] + ids[2]]), labels).scores
    check(packed[:1], expected[:1], over_vocabulary=True)
    with pytest.raises(AssertionError):
        check(packed[1:], expected[1:], over_vocabulary=True)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_gives_the_truth(way: str, lm: Server, tiny_lm: Path) -> None:
    for query, items, item_first in CASES.values():
        for options in ({}, {"apply_softmax": True, "temperature": 0.7}):
            answer = score_texts(lm, query, items, LABELS, way, item_first=item_first, **options)
            expected = truth(tiny_lm, query, items, LABELS, item_first, **options)
            check(answer.scores, expected, over_vocabulary=not options)
