"""Packing against a literal reading of its rule, token by token."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from types import FrameType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.attention.metadata import NO_SLOT
from hiscore.errors import PoolExhausted
from hiscore.scoring.packing.packing import Batch, pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from tests.support.strategies import Tokens, tokens

Name = tuple[int, int, int]  # prompt, node (0: the query, i: item i - 1), index in the node
CONTEXT = 100


def context_by_rule(calls: list[Tokens]) -> dict[Name, list[int]]:
    """By the rule: the ids that each token of a computed prompt sees, in order."""
    return {
        (c, node, place): (call.query if node else []) + ids[: place + 1]
        for c, call in enumerate(calls)
        if call.items
        for node, ids in enumerate([call.query, *call.items])
        for place in range(len(ids))
    }


def readers(calls: list[Tokens]) -> list[Name]:
    """The token at which each item must be read."""
    return [
        (c, i, len(item) - 1) if item else (c, 0, len(call.query) - 1)
        for c, call in enumerate(calls)
        for i, item in enumerate(call.items, start=1)
    ]


@dataclass
class Interpreter:
    """Runs forwards on ids instead of numbers: every slot of its pool holds an id."""

    pool: dict[int, int] = field(default_factory=dict)

    def run(
        self, batch: Batch, calls: list[Tokens], merged: bool = False
    ) -> tuple[dict[Name, list[int]], list[Name]]:
        """What each computed token sees, and where each item is read; `merged`: calls of one query are one."""
        first = {c: c for c in range(len(calls))}
        if merged:
            of_query: dict[tuple[int, ...], int] = {}
            first = {
                c: of_query.setdefault(tuple(call.query), c) for c, call in enumerate(calls) if call.items
            }
        names = [n for n in context_by_rule(calls) if n[1] > 0 or n[2] >= batch.cached_tokens[n[0]]]
        stream = iter(sorted(names, key=lambda name: first[name[0]]))
        seen: dict[Name, list[int]] = {}
        read: dict[int, Name] = {}
        for forward in batch.forwards:
            rows = [next(stream) for _ in forward.input_ids]
            ids = forward.input_ids.tolist()
            for i, slot in zip(ids, forward.slot_mapping.tolist(), strict=True):
                if slot != NO_SLOT:
                    self.pool[slot] = i
            edges = [0, *(group.last_row for group in forward.groups)]
            assert edges == [*(group.first_row for group in forward.groups), len(rows)]
            assert set(edges) <= set(forward.cu_seqlens)
            for group in forward.groups:
                context = [self.pool[slot] for slot in group.context_slots.tolist()]
                context += ids[group.context_rows] + [self.pool[slot] for slot in group.own_slots.tolist()]
                assert not (len(group.own_slots) and ids[group.context_rows])
                for first, last in pairwise(forward.cu_seqlens):
                    for row in range(max(first, group.first_row), min(last, group.last_row)):
                        seen[rows[row]] = context + ids[first : row + 1]
                        # A token's position is the number of tokens that it sees before itself.
                        assert forward.positions[row] == len(seen[rows[row]]) - 1
            for row, item in zip(forward.scored_rows, forward.scored_items, strict=True):
                assert item not in read
                read[int(item)] = rows[row]
        return seen, [read[item] for item in range(len(read))]


def distinct(calls: list[Tokens]) -> list[Tokens]:
    """The same shapes with all tokens different, so that none can be taken for another."""
    ids: Iterator[int] = count()
    return [
        Tokens([next(ids) for _ in call.query], [[next(ids) for _ in item] for item in call.items])
        for call in calls
    ]


def pages(budget: int, caching: bool = False, cache_pages: int = 0) -> QueryCache:
    reserve = pool_reserve(CONTEXT, budget)
    return QueryCache(reserve + cache_pages, reserve, caching)


batches = st.lists(tokens(vocabulary=500, longest=40, most=5), min_size=1, max_size=5).map(distinct)


@given(batches, st.integers(PAGE, 150))
def test_every_token_sees_what_the_rule_says(calls: list[Tokens], budget: int) -> None:
    seen, read = Interpreter().run(pack([call.prompt() for call in calls], budget, pages(budget)), calls)
    assert seen == context_by_rule(calls)
    assert read == readers(calls)


@given(batches, st.integers(PAGE, 150))
def test_forwards_are_filled_up_to_the_last_whole_block(calls: list[Tokens], budget: int) -> None:
    forwards = pack([call.prompt() for call in calls], budget, pages(budget)).forwards
    stream = [i for call in calls if call.items for ids in [call.query, *call.items] for i in ids]
    assert [i for forward in forwards for i in forward.input_ids] == stream
    rows = [len(forward.input_ids) for forward in forwards]
    assert all(count <= budget for count in rows)
    assert all(count > budget - PAGE for count in rows[:-1])


def key_blocks(batch: Batch, calls: list[Tokens], interpreter: Interpreter) -> dict[int, list[list[int]]]:
    """For each item the blocks of keys, as ids, that the attention kernel adds up for the row it is read at."""
    found: dict[int, list[list[int]]] = {}
    for forward in batch.forwards:
        ids = forward.input_ids.tolist()
        for i, slot in zip(ids, forward.slot_mapping.tolist(), strict=True):
            if slot != NO_SLOT:
                interpreter.pool[slot] = i
        for row, item in zip(forward.scored_rows.tolist(), forward.scored_items.tolist(), strict=True):
            (group,) = [each for each in forward.groups if each.first_row <= row < each.last_row]
            start = int(forward.cu_seqlens[np.searchsorted(forward.cu_seqlens, row, side="right") - 1])
            runs = [
                [interpreter.pool[slot] for slot in group.context_slots.tolist()],
                [interpreter.pool[slot] for slot in group.own_slots.tolist()],
                ids[group.context_rows],
                ids[start : row + 1],
            ]
            found[item] = [run[at : at + PAGE] for run in runs for at in range(0, len(run), PAGE)]
    return found


@given(batches, st.integers(PAGE, 150))
def test_the_blocks_of_keys_are_those_of_the_item_alone(calls: list[Tokens], budget: int) -> None:
    """So the order of a row's sums, and every bit of its score, is independent of the rest of the batch."""
    together = key_blocks(pack([c.prompt() for c in calls], budget, pages(budget)), calls, Interpreter())
    items = [Tokens(call.query, [item]) for call in calls for item in call.items]
    for index, one in enumerate(items):
        whole = key_blocks(pack([one.prompt()], 1_000, pages(1_000)), [one], Interpreter())
        assert together[index] == whole[0]


def test_control_cuts_anywhere_change_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = distinct([Tokens([0] * 40, [[0] * 40])])
    alone = key_blocks(pack([calls[0].prompt()], 1_000, pages(1_000)), calls, Interpreter())
    monkeypatch.setattr("hiscore.scoring.packing.packing._cut", lambda packed, budget, unit: [50, 80])
    cut = key_blocks(pack([calls[0].prompt()], 50, pages(50)), calls, Interpreter())
    assert cut != alone


@st.composite
def related_calls(draw: st.DrawFn) -> Tokens:
    """A prompt whose query is a prefix of one text, sometimes with one token changed."""
    query = list(range(draw(st.integers(0, 60))))
    if query and draw(st.booleans()):
        query[draw(st.integers(0, len(query) - 1))] = 999
    items = draw(st.lists(st.integers(0 if query else 1, 40), max_size=3))
    return Tokens(query, [[100 * (i + 1) + place for place in range(m)] for i, m in enumerate(items)])


@given(
    st.lists(st.lists(related_calls(), min_size=1, max_size=4), min_size=1, max_size=6),
    st.integers(PAGE, 150),
    st.integers(1, 12),
)
def test_cached_pages_hold_their_tokens(history: list[list[Tokens]], budget: int, cache_pages: int) -> None:
    """Over several batches, with so few pages that queries evict each other."""
    cache, interpreter = pages(budget, caching=True, cache_pages=cache_pages), Interpreter()
    for calls in history:
        batch = pack([call.prompt() for call in calls], budget, cache)
        seen, read = interpreter.run(batch, calls, merged=True)
        by_rule = context_by_rule(calls)
        assert seen == {name: by_rule[name] for name in seen}
        # Items of one query are read where the first call with it has its last token.
        computed = {tuple(call.query): c for c, call in reversed(list(enumerate(calls))) if call.items}
        assert read == [n if n[1] else (computed[tuple(calls[n[0]].query)], *n[1:]) for n in readers(calls)]
        for call, cached in zip(calls, batch.cached_tokens, strict=True):
            assert cached % PAGE == 0 or cached == len(call.query)
            assert cached <= len(call.query)


def test_control_a_page_reused_too_early_is_noticed() -> None:
    """What the interpreter would see if pages were reused while a forward still reads them."""
    calls = distinct([Tokens([0] * 40, [[0] * 9] * 3), Tokens([0] * 40, [[0] * 9] * 3)])
    batch = pack([call.prompt() for call in calls], 50, pages(50))
    assert Interpreter().run(batch, calls)[0] == context_by_rule(calls)
    for forward in batch.forwards:
        forward.slot_mapping[forward.slot_mapping != NO_SLOT] %= PAGE
    with pytest.raises((AssertionError, KeyError)):
        assert Interpreter().run(batch, calls)[0] == context_by_rule(calls)


@pytest.mark.parametrize(("query", "has"), [(60, 1), (60, 3), (10, 1), (10, 2)])
def test_a_prompt_that_does_not_fit_the_pool_is_refused_and_leaks_no_page(query: int, has: int) -> None:
    """Whether there is no room for its query, or none for a part of an item beside it."""
    small = QueryCache(has, 0, caching=False)
    with pytest.raises(PoolExhausted):
        pack([Tokens([1] * query, [[2] * 90] * 3).prompt()], 50, small)
    assert len(small.allocate(has)) == has


def test_the_reserve_holds_two_prompts_that_span_forwards() -> None:
    """Shapes found by search that need 10 of its 14 pages: for one prompt alone 9 would be reserved."""
    reserve = pool_reserve(221, 133)
    shapes = [(65, [62, 50, 20]), (111, [59, 110]), (94, [102, 125, 110])]
    prompts = [Tokens([1] * query, [[2] * item for item in items]).prompt() for query, items in shapes]
    pack(prompts, 133, QueryCache(reserve, reserve, caching=False))
    with pytest.raises(PoolExhausted):
        pack(prompts, 133, QueryCache(9, 0, caching=False))


def test_an_item_that_ends_with_its_forward_takes_no_page() -> None:
    first, _ = pack([Tokens([1] * 4, [[2] * 32] * 2).prompt()], 36, pages(36)).forwards
    assert (first.slot_mapping != NO_SLOT).tolist() == [True] * 4 + [False] * 32


def test_the_token_that_an_empty_item_is_read_at_is_computed() -> None:
    cache = QueryCache(8, reserve=0)
    without, with_empty = Tokens([1] * 2 * PAGE, [[2]]).prompt(), Tokens([1] * 2 * PAGE, [[2], []]).prompt()
    assert pack([without], 1_000, cache).cached_tokens == (0,)
    assert pack([without], 1_000, cache).cached_tokens == (2 * PAGE,)
    assert pack([without, with_empty], 1_000, cache).cached_tokens == (PAGE, 2 * PAGE)  # computed for both


def test_ten_thousand_items_pack_without_a_loop_over_items() -> None:
    """Counts lines of Python instead of time: any loop over the items would execute a line for each."""
    prompt = Tokens([1] * 50, [[2] * 50] * 10_000).prompt()
    cache = pages(16_384)
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        batch = pack([prompt], 16_384, cache)
    finally:
        sys.settrace(before)
    assert len(batch.forwards) == 31
    assert lines < 10_000


def test_a_miss_evicts_nothing_that_its_batch_counts_on() -> None:
    """The batch is one forward, and so has no reserve, only because the second query is cached."""
    cache = QueryCache(4, reserve=4)
    missing, known = (Tokens([first] * 3 * PAGE, [[2]]).prompt() for first in (1, 3))
    pack([known], 1_000, cache)
    batch = pack([missing, known], 3 * PAGE + 2, cache)
    assert batch.cached_tokens == (0, 3 * PAGE)
    assert [len(forward.input_ids) for forward in batch.forwards] == [3 * PAGE + 2]
