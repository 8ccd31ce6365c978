"""Parts of a large call: every item once, in order, each with the query, none much larger than asked."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hiscore.scoring.parts import QUERIES, WHOLE_UP_TO, split_call
from hiscore.scoring.request import MultiItemPrompt


def make(query: int, items: list[int]) -> MultiItemPrompt:
    """Every token is another, so that nothing can be mixed up unseen."""
    return MultiItemPrompt(np.arange(query + sum(items), dtype=np.int32), query, np.array(items, np.int64))


@given(st.integers(0, 20), st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(1, 200))
def test_parts_hold_every_item_once_with_the_whole_query(query: int, items: list[int], budget: int) -> None:
    call = make(query, items)
    parts = split_call(call, budget)
    size = max(budget, QUERIES * query)
    assert (len(parts) == 1) == (len(call.tokens) <= WHOLE_UP_TO * size or len(items) == 1)
    assert np.concatenate([part.item_lengths for part in parts]).tolist() == items
    own = [part.tokens[query:] for part in parts]
    assert np.array_equal(np.concatenate([call.tokens[:query], *own]), call.tokens)
    for part in parts:
        assert part.query_length == query
        assert np.array_equal(part.tokens[:query], call.tokens[:query])
        assert len(part.tokens) == query + part.item_lengths.sum()
        # The first item of a part may have begun in the one before.
        assert len(parts) == 1 or len(part.tokens) <= size + part.item_lengths[0]


def test_a_large_call_has_parts_and_a_smaller_one_has_not() -> None:
    assert len(split_call(make(10, [10] * 1_000), 1_000)) == 11
    assert len(split_call(make(10, [10] * 799), 1_000)) == 1
    # A long query makes large parts.
    assert len(split_call(make(1_000, [10] * 1_000), 1_000)) == 1
