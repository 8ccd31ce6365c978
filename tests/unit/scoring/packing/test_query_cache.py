"""The prefix cache: hits by page, eviction from the end of the least recent query, and its reserve."""

import numpy as np
import pytest

from hiscore.errors import PoolExhausted
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE, QueryKey
from tests.support.strategies import Tokens


def query(pages: int, first_id: int = 0) -> np.ndarray:
    """Ids of a query of full pages; queries with another first id share none of them."""
    return np.arange(first_id, first_id + pages * PAGE, dtype=np.int32)


def acquire(cache: QueryCache, key: QueryKey, most: int) -> tuple[np.ndarray, int]:
    """The slots of a query in a batch of its own, and how many of its tokens were found."""
    slots, found = cache.acquire_query(key, most)
    cache.end_batch()
    return slots, found


def hit(cache: QueryCache, tokens: np.ndarray) -> int:
    return acquire(cache, QueryKey.of(tokens), len(tokens))[1]


def test_a_query_is_found_again_until_newer_ones_take_its_pages() -> None:
    cache = QueryCache(4, reserve=0)
    length = 2 * PAGE + 8
    first, second = Tokens([1] * length, [[2]]).prompt(), Tokens([3] * length, [[2]]).prompt()
    changed = Tokens([1] * PAGE + [4] * (PAGE + 8), [[2]]).prompt()

    def cached(*prompts):
        return pack(list(prompts), 1_000, cache).cached_tokens

    assert cached(first, first) == (0, length)  # within a batch a query is computed once, to its last token
    assert cached(changed) == (PAGE,)
    assert cached(second) == (0,)  # takes the pages of the oldest
    assert cached(second, first) == (2 * PAGE, PAGE)  # whose beginning, used last, is still there
    cache.clear()
    assert cached(second) == (0,)


def test_the_end_of_a_query_is_evicted_before_its_beginning() -> None:
    """A beginning without an end is still a hit; an end without its beginning is none."""
    cache = QueryCache(3, reserve=0)
    assert hit(cache, query(3)) == 0
    for evicted in (1, 2):
        assert len(cache.allocate(1)) == 1
        slots, found = acquire(cache, QueryKey.of(query(3)[: (3 - evicted) * PAGE]), 3 * PAGE)
        assert found == len(slots) == (3 - evicted) * PAGE


def test_no_more_is_taken_from_the_cache_than_allowed() -> None:
    cache = QueryCache(4, reserve=0)
    slots, _ = acquire(cache, QueryKey.of(query(2)), 2 * PAGE)
    for max_hit, found in ((2 * PAGE, 2 * PAGE), (2 * PAGE - 1, PAGE), (PAGE, PAGE), (PAGE - 1, 0)):
        again, hits = acquire(cache, QueryKey.of(query(2)), max_hit)
        assert hits == found
        np.testing.assert_array_equal(again, slots)  # a page beyond it is written again in place


def test_without_caching_nothing_is_found() -> None:
    cache = QueryCache(4, reserve=0, caching=False)
    assert [hit(cache, query(1)) for _ in range(2)] == [0, 0]
    assert len(cache.allocate(4)) == 4


def test_hits_too_leave_the_reserve_to_prompts_that_span_forwards() -> None:
    cache = QueryCache(6, reserve=3)
    queries = [query(1, first_id=i) for i in range(6)]
    for each in queries:
        hit(cache, each)
    hits = [cache.acquire_query(QueryKey.of(each), PAGE)[1] for each in queries]
    assert hits == [PAGE] * 3 + [0] * 3
    pages = cache.allocate(3)
    with pytest.raises(PoolExhausted):
        cache.allocate(1)
    cache.free(pages[:1])
    assert cache.allocate(1) == pages[:1]


def test_a_batch_finds_its_own_pages_without_room_for_more() -> None:
    cache = QueryCache(1, reserve=0)
    assert [cache.acquire_query(QueryKey.of(query(1)), PAGE)[1] for _ in range(2)] == [0, PAGE]


def test_clearing_frees_all_pages_even_those_in_use() -> None:
    cache = QueryCache(3, reserve=0)
    hit(cache, query(1))
    cache.acquire_query(QueryKey.of(query(1, first_id=1)), PAGE)
    cache.clear()
    assert sorted(cache.allocate(3)) == [0, 1, 2]
    assert cache.acquire_query(QueryKey.of(query(1)), PAGE)[1] == 0


def test_what_a_held_batch_writes_is_not_found_and_what_it_reads_stays() -> None:
    cache = QueryCache(5, reserve=0)
    hit(cache, query(1))
    known, new = QueryKey.of(query(1)), QueryKey.of(query(3))  # which begins with the known page
    cache.begin_batch(0)
    slots, found = acquire(cache, new, 3 * PAGE)
    assert found == PAGE
    with cache.held():
        assert (cache.leading_pages(new), cache.leading_pages(known)) == (1, 1)
        # Others have the two pages that are left: for the same query, or for one after the other.
        own, found = acquire(cache, new, 3 * PAGE)
        assert found == PAGE
        assert set(own[PAGE:]).isdisjoint(slots[PAGE:])
        for first_id in (500, 900):
            other, found = acquire(cache, QueryKey.of(query(3, first_id)), 3 * PAGE)
            assert (len(other), found) == (2 * PAGE, 0)
            assert set(other).isdisjoint(slots)
        cache.clear()
        assert (cache.leading_pages(new), cache.leading_pages(known)) == (1, 1)
        assert len(cache.allocate(2)) == 2
    again, found = cache.acquire_query(new, 3 * PAGE)
    assert found == 3 * PAGE
    np.testing.assert_array_equal(again, slots)


def test_no_page_is_lost_to_a_batch_that_cannot_be_held_beside_another() -> None:
    cache = QueryCache(4, reserve=0)
    cache.begin_batch(0)
    acquire(cache, first := QueryKey.of(query(2, first_id=500)), 0)
    with cache.held():
        cache.begin_batch(0)
        acquire(cache, QueryKey.of(query(1, first_id=900)), 0)
        with pytest.raises(RuntimeError, match="two batches"), cache.held():
            pass
        cache.clear()
        assert (cache.holds, cache.leading_pages(first)) == (True, 0)
    assert cache.leading_pages(first) == 2
    cache.clear()
    assert len(cache.allocate(4)) == 4


def test_of_what_two_batches_computed_one_copy_is_kept() -> None:
    """And the end of the query is evicted before its beginning, as ever."""
    cache = QueryCache(6, reserve=0)
    key = QueryKey.of(query(3))
    cache.begin_batch(0)
    acquire(cache, key, 0)
    with cache.held():
        acquire(cache, key, 0)
    assert hit(cache, query(3)) == 3 * PAGE
    assert len(cache.allocate(4)) == 4
    assert cache.leading_pages(key) == 2
