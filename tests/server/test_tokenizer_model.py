"""The `tokenizer` model by itself: its layout, and that it takes many calls at once."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore.scoring.requests.layout import unpack
from tests.server.counters import counted
from tests.server.wire import WAYS, Refused

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
ATTEMPTS = 20
CALL = {
    "query": ["Is this a fruit? It is"], "items": [" an apple", " a hammer", ""], "label_token_ids": LABELS,
}  # fmt: skip


def tokenize(
    server: Server, query: str, items: list[str], way: str = "grpc", **parameters: Any
) -> tuple[list[int], list[list[int]]]:
    """The query's ids and every item's."""
    inputs = {"query": [query], "items": items, "label_token_ids": LABELS}
    outputs = {name: ids.ravel() for name, ids in WAYS[way](server, "tokenizer", inputs, parameters).items()}
    assert set(outputs) == {"input_ids", "delimiter_indices", "label_token_ids"}
    assert all(ids.dtype == np.int32 for ids in outputs.values())
    assert outputs["label_token_ids"].tolist() == LABELS
    indices = outputs["delimiter_indices"]
    assert len(indices) == len(items) + 1
    assert indices[-1] == len(outputs["input_ids"]) - 1
    call = unpack(outputs["input_ids"], indices)
    ends = call.query_length + np.cumsum([0, *call.item_lengths])
    tokens = call.tokens.tolist()
    return tokens[: call.query_length], [tokens[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("item_first", [False, True])
def test_the_layout_holds_the_tokens_of_each_whole_text(
    way: str, item_first: bool, lm: Server, tiny_lm: Path
) -> None:
    truth = AutoTokenizer.from_pretrained(tiny_lm)
    query, items = "Is this a fru", ["it", "", "苹果 é", " <|im_end|>", "it"]
    head, rests = tokenize(lm, query, items, way, item_first=item_first)
    whole = [truth(item + query if item_first else query + item)["input_ids"] for item in items]
    assert [[*head, *rest] for rest in rests] == whole


@pytest.mark.parametrize("way", WAYS)
def test_without_items_it_is_the_query_alone(way: str, lm: Server, tiny_lm: Path) -> None:
    assert tokenize(lm, "Is it?", [], way) == (
        AutoTokenizer.from_pretrained(tiny_lm)("Is it?")["input_ids"],
        [],
    )


def test_calls_of_different_sizes_share_a_batch_and_a_bad_one_fails_alone(lm: Server, tiny_lm: Path) -> None:
    truth = AutoTokenizer.from_pretrained(tiny_lm)
    texts = [f"Query {place}" for place in range(32)]

    def outcome(place: int) -> bool:
        items = [] if place == 7 else [f" item {number}" for number in range(place + 1)]
        # An empty query with an empty item leaves nothing to read.
        query, items = ("", [""]) if place == 11 else (texts[place], items)
        try:
            head, rests = tokenize(lm, query, items)
        except Refused:
            return False
        return [[*head, *rest] for rest in rests] == [truth(query + item)["input_ids"] for item in items]

    calls = "tokenizer", "hiscore_tokenized_calls_total"
    for _ in range(ATTEMPTS):
        with counted(lm, {calls: 32}) as risen, ThreadPoolExecutor(33) as pool:
            # A long one first, behind which the others gather, unless this machine does something else just then.
            long = pool.submit(tokenize, lm, "a b " * 500, [f" {number}" for number in range(5_000)])
            assert list(pool.map(outcome, range(32))) == [place != 11 for place in range(32)]
            assert len(long.result()[1]) == 5_000
        assert risen[calls] == 32
        assert risen["tokenizer", "hiscore_full_encodes_total"] == 0
        if risen["tokenizer", "hiscore_tokenizer_batches_total"] < 32:
            return
    raise AssertionError("each call was a batch of its own")


@pytest.mark.parametrize("item_first", [False, True])
def test_score_is_the_scorer_on_what_it_gives(item_first: bool, lm: Server) -> None:
    calls = [(model, "hiscore_call_seconds_count") for model in ("tokenizer", "scorer")]
    options = {"item_first": item_first, "apply_softmax": True}
    with counted(lm, dict.fromkeys(calls, 1)):
        found = WAYS["grpc"](lm, "score", CALL, options)["scores"]
    ids = WAYS["grpc"](lm, "tokenizer", CALL, options)
    by_hand = WAYS["grpc"](lm, "scorer", ids, options)["scores"]
    # The contract's tolerance between batches: the second finds the query in the cache.
    np.testing.assert_allclose(found, by_hand, atol=2e-5, rtol=0)
    assert np.ptp(found[..., 0]) > 1e-3  # the control: items differ
