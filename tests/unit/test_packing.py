"""Packing against a plain reading of its rule, token by token."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hiscore.packing import Forward, pack
from tests.support.strategies import Tokens, tokens

Seen = list[tuple[int, int]]


def visible(calls: list[Tokens]) -> dict[tuple[int, int, int], list[tuple[int, int, int]]]:
    """By the rule: (call, node, place) -> what it sees, in order; node 0 is the query, node i item i - 1."""
    rule = {}
    for c, call in enumerate(calls):
        query = [(c, 0, place) for place in range(len(call.query))]
        for place in range(len(query)):
            rule[c, 0, place] = query[: place + 1]
        for i, item in enumerate(call.items, start=1):
            for place in range(len(item)):
                rule[c, i, place] = [*query, *((c, i, p) for p in range(place + 1))]
    return rule


def names(calls: list[Tokens]) -> list[tuple[int, int, int]]:
    """The stream's tokens by name; a call without items is not computed."""
    return [
        (c, node, place)
        for c, call in enumerate(calls)
        if call.items
        for node, ids in enumerate([call.query, *call.items])
        for place in range(len(ids))
    ]


def replay(forwards: list[Forward], calls: list[Tokens]) -> dict[tuple[int, int, int], list]:
    """What each token sees through the forwards' slots, contexts and segments."""
    stream = iter(names(calls))
    kept: list = []
    seen = {}
    for forward in forwards:
        assert forward.kept == len(kept)
        slots = kept + [next(stream) for _ in forward.input_ids]
        for segment, context in enumerate(forward.context_of):
            first, last = forward.cu_seqlens[segment : segment + 2]
            before = [slots[slot] for slot in forward.contexts[context]]
            for row in range(first, last):
                own = slots[forward.kept + first : forward.kept + row + 1]
                seen[slots[forward.kept + row]] = before + own
                # A token's position is the number of tokens that it sees before itself.
                assert forward.positions[row] == len(before) + row - first
        kept = [slots[slot] for slot in forward.keep]
    assert kept == []
    return seen


@given(st.lists(tokens(vocabulary=500, longest=9, most=5), min_size=1, max_size=5), st.integers(1, 40))
def test_every_token_sees_what_the_rule_says(calls: list[Tokens], budget: int) -> None:
    forwards = pack([call.call() for call in calls], budget)
    assert replay(forwards, calls) == {
        name: seen for name, seen in visible(calls).items() if calls[name[0]].items
    }


@given(st.lists(tokens(vocabulary=500, longest=9, most=5), min_size=1, max_size=5), st.integers(1, 40))
def test_every_item_is_read_once_at_its_last_token(calls: list[Tokens], budget: int) -> None:
    forwards = pack([call.call() for call in calls], budget)
    stream = names(calls)
    read, first = {}, 0
    for forward in forwards:
        for row, item in zip(forward.scored_rows, forward.answers, strict=True):
            assert item not in read
            read[int(item)] = stream[first + row]
        first += len(forward.input_ids)
    expected = [
        (c, i, len(item) - 1) if item else (c, 0, len(call.query) - 1)
        for c, call in enumerate(calls)
        for i, item in enumerate(call.items, start=1)
    ]
    assert [read[item] for item in range(len(expected))] == expected


@given(st.lists(tokens(vocabulary=500, longest=9, most=5), min_size=1, max_size=5), st.integers(1, 40))
def test_the_number_of_forwards_is_the_tokens_over_the_budget(calls: list[Tokens], budget: int) -> None:
    forwards = pack([call.call() for call in calls], budget)
    total = sum(len(call.query) + sum(map(len, call.items)) for call in calls if call.items)
    assert len(forwards) == -(-total // budget)
    assert [len(forward.input_ids) for forward in forwards[:-1]] == [budget] * (len(forwards) - 1)
    ids = np.concatenate([f.input_ids for f in forwards]) if forwards else np.empty(0)
    flat = [i for call in calls if call.items for ids_ in [call.query, *call.items] for i in ids_]
    assert ids.tolist() == flat


def test_ten_thousand_items_pack_without_a_loop_over_items() -> None:
    """About 20 ms where a Python loop over items, for each forward, takes seconds."""
    call = Tokens([1] * 50, [[2] * 50] * 10_000).call()
    start = time.perf_counter()
    forwards = pack([call], 16_384)
    assert time.perf_counter() - start < 0.5
    assert len(forwards) == 31
