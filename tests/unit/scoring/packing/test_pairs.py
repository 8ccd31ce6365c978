"""Pairs and their packing: whole pairs, in order, under the budget."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.scoring.packing.pairs import PairRules, as_pairs, pack_pairs
from tests.support.encoding import sequences
from tests.support.strategies import Tokens, tokens

TYPES = PairRules(token_types=(0, 1))


@given(call=tokens(100))
def test_a_pair_is_the_query_and_one_item(call: Tokens) -> None:
    pairs = as_pairs(call.prompt())
    assert (pairs.query_length, pairs.first_text) == (0, len(call.query))
    assert sequences(pairs) == [[*call.query, *item] for item in call.items]


@given(batch=st.lists(tokens(100), max_size=4), budget=st.integers(1, 60))
def test_forwards_hold_whole_pairs_in_order(batch: list[Tokens], budget: int) -> None:
    expected = [[*call.query, *item] for call in batch for item in call.items]
    packed = pack_pairs([as_pairs(call.prompt()) for call in batch], budget, TYPES)
    assert packed.cached_tokens == (0,) * len(batch)
    found, types, items = [], [], []
    for forward in packed.forwards:
        edges = forward.cu_seqlens
        assert len(forward.input_ids) <= budget or len(edges) == 2
        assert forward.scored_rows.tolist() == edges[:-1].tolist()
        for first, last in itertools.pairwise(edges):
            found.append(forward.input_ids[first:last].tolist())
            types.append(forward.token_types[first:last].tolist())
            assert forward.positions[first:last].tolist() == list(range(last - first))
        items += forward.scored_items.tolist()
    assert found == expected
    assert items == list(range(len(expected)))
    assert types == [
        [0] * len(call.query) + [int(bool(call.query))] * len(item) for call in batch for item in call.items
    ]
    # No forward could have taken the next one's first pair as well.
    for one, other in zip(packed.forwards, packed.forwards[1:], strict=False):
        assert len(one.input_ids) + other.cu_seqlens[1] > budget


def test_positions_as_roberta_counts_them() -> None:
    """From pad + 1 on; a pad is not counted and has the pad's own position."""
    rules = PairRules(first_position=2, uncounted_id=1)
    (forward,) = pack_pairs([as_pairs(Tokens([5, 1], [[7, 8], [1, 9, 1, 3]]).prompt())], 100, rules).forwards
    assert forward.positions.tolist() == [2, 1, 3, 4, 2, 1, 1, 3, 1, 4]


@pytest.mark.parametrize(("reads", "rows"), [("first", [0, 2]), ("last", [1, 4]), ("all", [0, 1, 2, 3, 4])])
def test_the_head_reads_some_rows_or_all(reads: Any, rows: list[int]) -> None:
    pairs = as_pairs(Tokens([5], [[7], [8, 9]]).prompt())
    (forward,) = pack_pairs([pairs], 100, PairRules(reads=reads)).forwards
    assert forward.scored_rows.tolist() == rows
    assert forward.scored_items.tolist() == [0, 1]


def test_parts_of_a_large_call_keep_where_the_item_begins() -> None:
    pairs = as_pairs(Tokens([1, 2, 3], [[4]] * 100).prompt())
    parts = [pairs.part(first, first + 10) for first in range(0, 100, 10)]
    assert {part.first_text for part in parts} == {3}
    assert [each for part in parts for each in sequences(part)] == sequences(pairs)
