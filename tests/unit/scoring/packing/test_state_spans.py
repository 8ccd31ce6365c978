"""Where packing cuts with recurrent layers, and what it takes from the cache."""

import numpy as np
import pytest

from hiscore.recurrence.metadata import (
    CHUNK,
    FIRST_CACHED_SLOT,
    ITEM_SLOT,
    QUERY_SLOT,
    STATES_OF_QUERY,
    ZERO_SLOT,
)
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt

QUERY = list(range(2 * CHUNK))


def cache_of(pages: int, reserve: int) -> QueryCache:
    return QueryCache(pages, reserve, states=StateCache(FIRST_CACHED_SLOT + 8))


@pytest.mark.parametrize("budget", [CHUNK, CHUNK + PAGE, 2 * CHUNK + 5])
def test_queries_and_items_are_cut_between_chunks(budget: int) -> None:
    """Elsewhere a state would have other rounding than that of an uncut run."""
    prompt = MultiItemPrompt.of(list(range(150)), [[7] * 200, [8] * 3])
    forwards = pack([prompt], budget, cache_of(64, 40)).forwards
    assert len(forwards) > 2
    for forward in forwards:
        begin = int(forward.positions[0])
        assert (begin if begin < 150 else begin - 150) % CHUNK == 0


def test_forwards_hand_on_the_states_of_the_query_and_of_the_item() -> None:
    prompt = MultiItemPrompt.of(QUERY, [[7] * CHUNK, [8] * 2 * CHUNK])
    plans = [forward.states for forward in pack([prompt], 2 * CHUNK + 1, cache_of(64, 40)).forwards]
    assert [set(plan.loaded.tolist()) for plan in plans] == [
        {ZERO_SLOT},
        {ZERO_SLOT, QUERY_SLOT},
        {ZERO_SLOT, QUERY_SLOT, ITEM_SLOT},
    ]
    assert [set(plan.stored_slots.tolist()) & {QUERY_SLOT, ITEM_SLOT} for plan in plans] == [
        {QUERY_SLOT},
        {QUERY_SLOT, ITEM_SLOT},
        set(),
    ]


def test_pages_without_a_state_are_computed_again() -> None:
    """Whether the state is gone, or the pool has no room for all pages that lead to it."""
    cache = cache_of(pages=6, reserve=4)
    prompt = MultiItemPrompt.of(QUERY, [[7]])
    assert pack([prompt], 4_096, cache).cached_tokens == (0,)
    assert pack([prompt], 4_096, cache).cached_tokens == (2 * CHUNK,)
    # A batch of several forwards reserves all but two pages.
    batch = pack([MultiItemPrompt.of(QUERY, [[7] * 2 * CHUNK])], CHUNK, cache)
    assert batch.cached_tokens == (0,)
    assert batch.forwards[0].states is not None
    assert batch.forwards[0].states.loaded.tolist() == [ZERO_SLOT]
    assert cache.states is not None
    cache.states.clear()
    assert cache.leading_pages(prompt.query_key) > 0
    assert cache.hit(prompt.query_key, len(QUERY)) == 0


def test_what_a_batch_counts_on_finding_is_not_evicted_by_it() -> None:
    """It would take several forwards then, with no pages in reserve for them."""
    found = [
        MultiItemPrompt.of([number] * length, items)
        for number, length, items in ((1, 261, [[7] * 10, [8] * 35]), (2, 128, [[7]]), (3, 64, [[7]]))
    ]
    cache = QueryCache(17, 17, states=StateCache(FIRST_CACHED_SLOT + len(found)))
    for prompt in found:
        pack([prompt], 4_096, cache)
    new = [MultiItemPrompt.of([number] * length, [[7]]) for number, length in ((4, CHUNK), (5, PAGE))]
    assert pack([*new, *reversed(found)], 150, cache).cached_tokens == (0, 0, 64, 128, 256)


def test_a_query_has_as_many_states_at_once_as_memory_is_planned_for() -> None:
    cache = cache_of(64, 40)
    for length, end in ((CHUNK, 0), (2 * CHUNK, 100), (2 * CHUNK, 101)):
        query = [1] * length + [end] * end
        (forward,) = pack([MultiItemPrompt.of(query, [[7]])], 4_096, cache).forwards
    assert forward.states is not None
    assert forward.states.loaded.tolist()[-1] == ZERO_SLOT
    assert forward.states.states - 1 == STATES_OF_QUERY


def test_empty_items_have_no_span() -> None:
    forward = pack([MultiItemPrompt.of([1, 2, 3], [[], [4], []])], 64, cache_of(8, 4)).forwards[0]
    assert forward.states is not None
    query, item = forward.states.batches
    assert [batch.rows.tolist() for batch in (query, item)] == [[0, 1, 2], [3]]
    assert item.starts.tolist() == query.ends.tolist()
    np.testing.assert_array_equal(item.cu_seqlens, [0, 1])
