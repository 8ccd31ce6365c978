"""What prompts cost in a batch, and the parts of large ones: every item once, in order, each with the query."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hiscore.attention.metadata import MAX_CONTEXT_SLOTS
from hiscore.scoring.packing.batch_plan import MIN_QUERIES_PER_PART, WHOLE_UP_TO, ScoringPlan
from hiscore.scoring.packing.packing import pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest

BUDGET = 16_384
LABELS = np.array([5, 6], np.int32)


def make(query: int, items: list[int], first_id: int = 0) -> ScoreRequest:
    """All tokens differ, so that nothing can be mixed up unnoticed."""
    tokens = np.arange(first_id, first_id + query + sum(items), dtype=np.int32)
    return ScoreRequest(MultiItemPrompt(tokens, query, np.array(items, np.int64)), LABELS, ScoreOptions())


def cache(pages: int = 2_000, caching: bool = True) -> QueryCache:
    reserve = pool_reserve(16_384, BUDGET)
    return QueryCache(pages + reserve, reserve, caching)


def warm(cache: QueryCache, job: ScoreRequest) -> None:
    pack([job.prompt], BUDGET, cache)


def parts_of(job: ScoreRequest, room: int, pages: QueryCache) -> list[ScoreRequest]:
    parts, done = [], 0
    while done is not None:
        plan = ScoringPlan(pages, BUDGET)
        left = plan.price(job, done)
        part = plan.take(job, done, room, at_least_one=True)
        assert part is not None
        assert part.cost <= left
        warm(pages, part.job)
        parts.append(part.job)
        done = part.done
    return parts


def test_waiting_calls_that_share_a_cached_query_fit_one_batch() -> None:
    """64 calls of a cached query of 12,000 tokens took 64 forwards."""
    jobs = [make(12_000, [128]) for _ in range(64)]
    pages = cache()
    warm(pages, jobs[0])
    plan = ScoringPlan(pages, BUDGET)
    parts = [plan.take(job, 0, BUDGET, at_least_one=False) for job in jobs]
    assert sum(part.cost for part in parts if part is not None) == 64 * 128
    batch = pack([part.job.prompt for part in parts if part is not None], BUDGET, pages)
    (forward,) = batch.forwards
    assert len(forward.input_ids) == 64 * 128
    # One context for all, not 64 copies of it.
    assert [len(group.context_slots) for group in forward.groups] == [12_000]
    assert batch.cached_tokens == (12_000,) * 64


def test_a_query_that_is_not_cached_is_paid_once_in_a_batch() -> None:
    """Also its last tokens, which fill no page."""
    pages = cache()
    plan = ScoringPlan(pages, BUDGET)
    jobs = [make(1_010, [20]), make(1_010, [30]), make(1_010, [40, 5])]
    assert [plan.take(job, 0, BUDGET, False).cost for job in jobs] == [1_030, 30, 45]
    batch = pack([job.prompt for job in jobs], BUDGET, pages)
    assert [len(forward.input_ids) for forward in batch.forwards] == [1_105]
    assert batch.cached_tokens == (0, 1_010, 1_010)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 200), st.lists(st.integers(0, 40), max_size=4)),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=3),
    st.booleans(),
)
def test_the_price_is_what_packing_computes(
    calls: list[tuple[int, int, list[int]]], cached: list[tuple[int, int]], caching: bool
) -> None:
    """Queries are beginnings of four texts. Empty items cost one more, so that the batch stays bounded."""

    def job(text: int, query: int, items: list[int]) -> ScoreRequest:
        return make(query, items if query else [item + 1 for item in items], 1_000 * text)

    pages = cache(caching=caching)
    for text, query in cached:
        warm(pages, job(text, query, [1]))
    jobs = [job(*call) for call in calls]
    plan = ScoringPlan(pages, BUDGET)
    cost = sum(plan.take(each, 0, BUDGET, True).cost for each in jobs)
    computed = sum(len(f.input_ids) for f in pack([each.prompt for each in jobs], BUDGET, pages).forwards)
    empty = sum(items.count(0) if query else 0 for _, query, items in calls)
    # An empty item makes its query's last page computed again, for all that share the query.
    slack = PAGE * len(jobs) if empty else 0
    assert computed <= cost + slack
    assert cost - empty <= computed


Prompts = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 150), st.lists(st.integers(0, 40), min_size=1, max_size=4)),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(Prompts, Prompts, Prompts, st.integers(4, 30))
@example([(0, 64, [1])], [(1, 64, [200])], [(0, 64, [1]), (0, 64, [1, 0]), (2, 90, [1]), (2, 91, [1])], 4)
def test_while_a_batch_is_held_no_batch_turns_out_larger(
    before: list[tuple[int, int, list[int]]],
    large: list[tuple[int, int, list[int]]],
    small: list[tuple[int, int, list[int]]],
    pages: int,
) -> None:
    """Whatever the pool has room for, and in one forward: what is computed between slices is bounded."""
    pool = QueryCache(pages, pages)
    jobs = [
        [make(query, items, 10_000 * first) for first, query, items in each]
        for each in (before, large, small)
    ]
    for each in jobs[:2]:
        pack([job.prompt for job in each], BUDGET, pool)
    with pool.held():
        plan = ScoringPlan(pool, BUDGET)
        parts = [plan.take(job, 0, BUDGET, at_least_one=False) for job in jobs[2]]
        cost = sum(part.cost for part in parts if part is not None)
        batch = pack([job.prompt for job in jobs[2]], max(cost, PAGE), pool)
    assert sum(len(forward.input_ids) for forward in batch.forwards) <= cost
    assert len(batch.forwards) <= 1


def test_control_otherwise_what_finds_no_room_in_the_pool_costs_more() -> None:
    pool = QueryCache(4, 4)
    jobs = [make(96, [1]), make(96, [2], 5_000), make(97, [3], 5_000)]
    plan = ScoringPlan(pool, BUDGET)
    cost = sum(part.cost for job in jobs if (part := plan.take(job, 0, BUDGET, at_least_one=False)))
    batch = pack([job.prompt for job in jobs], BUDGET, pool)
    assert sum(len(forward.input_ids) for forward in batch.forwards) > cost


def test_contexts_fill_a_batch_as_well() -> None:
    """A forward names a limited number of cached tokens, however few it computes."""
    jobs = [make(10_000 + PAGE * i, [1]) for i in range(8)]
    pages = cache()
    for job in jobs:
        warm(pages, job)
    plan = ScoringPlan(pages, BUDGET)
    costs = [plan.take(job, 0, BUDGET, True).cost for job in jobs]
    assert all(cost >= 10_000 // PAGE * PAGE * BUDGET / MAX_CONTEXT_SLOTS > 30 for cost in costs)


@given(
    st.integers(0, 20),
    st.lists(st.integers(0, 40), min_size=1, max_size=300),
    st.integers(1, 200),
    st.booleans(),
)
@example(10, [1, 150, 29] + 10 * [90], 100, True)
@example(0, [0, 0, 2], 1, True)
def test_parts_hold_items_once_with_the_query(query: int, items: list[int], room: int, caching: bool) -> None:
    job = make(query, items)
    parts = [part.prompt for part in parts_of(job, room, cache(caching=caching))]
    assert list(chain.from_iterable(part.item_lengths.tolist() for part in parts)) == items
    own = [part.tokens[query:] for part in parts]
    assert np.array_equal(np.concatenate([job.prompt.tokens[:query], *own]), job.prompt.tokens)
    bound = max(room, MIN_QUERIES_PER_PART * query)
    for part in parts:
        assert part.query_length == query
        assert np.array_equal(part.tokens[:query], job.prompt.tokens[:query])
        assert len(part.tokens) == query + part.item_lengths.sum()
        if len(parts) > 1:
            assert len(part.tokens) <= bound or len(part.item_lengths) == 1


def test_once_the_query_is_cached_parts_are_as_small_as_the_room() -> None:
    """Parts were eight times as long as the query: at 6,000 tokens, three forwards that held up all others."""
    job = make(6_000, [100] * 400)
    parts = parts_of(job, 2_000, cache())
    computed = [len(part.prompt.tokens) - 6_000 for part in parts[1:]]
    assert max(computed) <= 2_000
    assert min(computed[:-1]) > 1_800


@pytest.mark.parametrize("caching", [False, True], ids=["off", "small"])
def test_a_query_that_cannot_stay_cached_is_not_computed_too_often(caching: bool) -> None:
    large = make(6_000, [100] * 5_000)
    held = QueryCache(2 * (6_000 // PAGE) - 1, 300, caching=caching)
    parts = parts_of(large, 2_000, held)
    assert all(len(part.prompt.tokens) > 0.9 * MIN_QUERIES_PER_PART * 6_000 for part in parts[:-1])
    # Up to a size it stays whole.
    whole = WHOLE_UP_TO * MIN_QUERIES_PER_PART * 5_999
    assert len(parts_of(make(5_999, [100] * (whole // 100 - 60)), 2_000, held)) == 1
    assert len(parts_of(make(5_999, [100] * (whole // 100)), 2_000, held)) > 1


def test_a_part_that_does_not_fit_is_not_taken_unless_it_must() -> None:
    plan, job = ScoringPlan(cache(), BUDGET), make(10, [50, 50])
    assert plan.take(job, 0, 20, at_least_one=False) is None
    part = plan.take(job, 0, 20, at_least_one=True)
    assert (part.cost, part.done, part.left) == (60, 1, 50)
    long = make(PAGE, [50, 50, 50])
    part = plan.take(long, 0, 60, at_least_one=True)
    assert (part.cost, part.done, part.left) == (PAGE + 50, 1, 100)
    assert (rest := plan.take(long, 1, 100, at_least_one=False)) is not None
    assert (rest.cost, rest.done, rest.left) == (100, None, 0)
