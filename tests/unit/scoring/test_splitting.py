"""Parts of a large prompt: every item once, in order, each with the query, none beyond the bound."""

from itertools import chain

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hiscore.scoring.request import MultiItemPrompt
from hiscore.scoring.splitting import MIN_QUERIES_PER_PART, WHOLE_UP_TO, split_prompt


def make(query: int, items: list[int]) -> MultiItemPrompt:
    """All tokens differ, so that nothing can be mixed up unnoticed."""
    return MultiItemPrompt(np.arange(query + sum(items), dtype=np.int32), query, np.array(items, np.int64))


def item_lengths(parts: list[MultiItemPrompt]) -> list[list[int]]:
    return [part.item_lengths.tolist() for part in parts]


@given(st.integers(0, 20), st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(1, 200))
@example(10, [1, 150, 29] + 10 * [90], 100)
def test_parts_hold_every_item_once_with_the_whole_query(query: int, items: list[int], budget: int) -> None:
    prompt = make(query, items)
    parts = split_prompt(prompt, budget)
    bound = max(budget, MIN_QUERIES_PER_PART * query)
    assert (len(parts) == 1) == (len(prompt.tokens) <= WHOLE_UP_TO * bound or len(items) == 1)
    assert list(chain.from_iterable(item_lengths(parts))) == items
    own = [part.tokens[query:] for part in parts]
    assert np.array_equal(np.concatenate([prompt.tokens[:query], *own]), prompt.tokens)
    for part in parts:
        assert part.query_length == query
        assert np.array_equal(part.tokens[:query], prompt.tokens[:query])
        assert len(part.tokens) == query + part.item_lengths.sum()
        assert len(parts) == 1 or len(part.tokens) <= bound or len(part.item_lengths) == 1


def test_an_item_that_would_exceed_the_bound_starts_a_part() -> None:
    parts = split_prompt(make(10, [1, 150, 29] + 10 * [90]), 100)
    assert item_lengths(parts) == [[1], [150], [29]] + 10 * [[90]]


def test_an_item_may_end_exactly_at_the_bound() -> None:
    assert item_lengths(split_prompt(make(10, 30 * [45]), 100)) == 15 * [[45, 45]]
    assert item_lengths(split_prompt(make(10, 30 * [45]), 99)) == 30 * [[45]]
    # An empty item takes no room.
    assert item_lengths(split_prompt(make(10, [45, 45, 0] * 15), 100)) == 15 * [[45, 45, 0]]


def test_a_large_prompt_has_parts_and_a_smaller_one_has_not() -> None:
    assert len(split_prompt(make(10, [10] * 1_000), 1_000)) == 11
    assert len(split_prompt(make(10, [10] * 799), 1_000)) == 1
    assert len(split_prompt(make(10, [10] * 800), 1_000)) == 9
    # A long query makes large parts.
    assert len(split_prompt(make(1_000, [10] * 1_000), 1_000)) == 1
