"""The order of requests, by example."""

import gc
import heapq
import math
from itertools import pairwise
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.batching import request_order
from hiscore.batching.request_order import FORGET_AFTER, LARGE, MANY, PART, SPARE, RequestOrder, drop_stale
from hiscore.prefill.row_counts import SHORT_ROWS

BUDGET, ITEM = 16_384, 64
BETWEEN = [SHORT_ROWS, 0]
in_both = pytest.mark.parametrize("between", BETWEEN, ids=["slices", "whole"])


class Call:
    """`left` tokens, taken by the item."""

    def __init__(self, index: int, left: int, divisible: bool = True) -> None:
        self.index, self.left = index, left
        self.item = ITEM if divisible else left


class Batch:
    def __init__(self) -> None:
        self.cost = 0
        self.taken: list[tuple[Call, int]] = []

    def price(self, call: Call) -> int:
        return call.left

    def take(self, call: Call, room: int, at_least_one: bool = False) -> tuple[int, int] | None:
        cost = call.left
        if cost > room:
            cost = min(call.left, max(room // call.item, int(at_least_one)) * call.item)
            if cost <= 0:
                return None
        call.left -= cost
        self.cost += cost
        self.taken.append((call, cost))
        return cost, call.left


def order_of(*usual: int, between: int = SHORT_ROWS) -> RequestOrder[Call]:
    order: RequestOrder[Call] = RequestOrder(BUDGET, between)
    for size in usual:
        order.add(call := Call(0, size), size, contended=True)
        order.remove(call)
    return order


def add(order: RequestOrder[Call], *sizes: int) -> list[Call]:
    calls = [Call(index, size, divisible=False) for index, size in enumerate(sizes)]
    for call in calls:
        order.add(call, call.left, contended=True)
    return calls


def filled(order: RequestOrder[Call], between: bool = False) -> list[int]:
    batch = Batch()
    if between:
        assert order.fill_between(batch) == bool(batch.taken)
    else:
        order.fill(batch)
    return [cost for _, cost in batch.taken]


def test_small_and_large_ones_have_turns() -> None:
    """Between slices too: no batch there costs more than it may, and every second turn is the next slice's."""
    order = order_of(*64 * [128])
    add(order, 4_096, 2_048, 8_192, *10 * [256])
    assert filled(order) == 4 * [256]
    assert filled(order) == [4_096, 2_048]
    assert [filled(order, between=True) for _ in range(5)] == [4 * [256], [], 2 * [256], [], []]
    assert filled(order) == [8_192]


def test_without_slices_large_ones_are_divided_while_small_ones_are_expected() -> None:
    """Into parts that grow with what waits. The control is a load of large calls."""
    part = int(PART * BUDGET)
    order = order_of(*64 * [128], between=0)
    order.add(Call(-1, 4_096), 4_096, contended=True)
    add(order, 256, 128)
    assert [filled(order) for _ in range(3)] == [[256, 128], [part], [part]]
    order.add(Call(-1, 4 * part), 4 * part, contended=True)
    assert filled(order) == [2 * part]
    control = order_of(*64 * [1_920], between=0)
    control.add(Call(-1, 4_096), 4_096, contended=True)
    assert filled(control) == [4_096]
    # The largest small one, and the smallest large one.
    bound = order_of(*64 * [128], between=0)
    add(bound, 512, 513)
    assert [filled(bound) for _ in range(2)] == [[512], [513]]


def test_a_small_rest_waits_for_the_part_before_it() -> None:
    """Else its last part would end first, and the answer would be in another order."""
    order = order_of(*64 * [1_920])
    order.add(Call(-1, BUDGET + 128), BUDGET + 128, contended=True)
    assert filled(order) == [BUDGET]
    add(order, 256)
    assert [filled(order, between=True) for _ in range(2)] == [[256], []]
    assert filled(order) == [128]


def test_a_small_one_that_has_become_large_keeps_nobody_waiting() -> None:
    """It finds no shared query any more, and waits for a turn of the large ones."""
    order = order_of(*64 * [128])
    grown, *_ = add(order, 128, 128, 4_096)
    grown.left = 3_000
    assert filled(order, between=True) == [128]
    assert filled(order) == [3_000]
    assert filled(order) == [4_096]


def test_many_small_ones_fill_batches() -> None:
    """And interrupt nobody: small batches would mostly pay for the start of a forward."""
    order = order_of(*64 * [128])
    count = MANY * SHORT_ROWS // 128
    add(order, *count * [128])
    assert filled(order, between=True) == SHORT_ROWS // 128 * [128]
    add(order, *3 * count * [128])
    assert filled(order, between=True) == filled(order, between=True) == []
    assert sum(filled(order)) > 2 * MANY * SHORT_ROWS


@in_both
@pytest.mark.parametrize("size", [1_000, 1_920])
def test_a_load_of_equal_calls_fills_batches(size: int, between: int) -> None:
    """Small batches are for small calls: these would only pay for more forwards."""
    order = order_of(*64 * [size], between=between)
    add(order, *64 * [size])
    assert order.expects_small() == (size < 1_024)
    assert sum(filled(order)) > 0.9 * BUDGET


@in_both
def test_a_probe_now_and_then_makes_no_batch_small(between: int) -> None:
    assert not order_of(*8 * [2], *56 * [1_920], between=between).expects_small()
    assert order_of(*9 * [2], *55 * [1_920], between=between).expects_small()


@pytest.mark.parametrize(("between", "forgotten"), [(SHORT_ROWS, False), (0, True)])
def test_a_call_to_an_idle_server_is_taken_whole(between: int, forgotten: bool) -> None:
    """In slices whatever came before, otherwise once enough calls have met nobody."""
    order = order_of(*64 * [128], between=between)
    for _ in range(64 * FORGET_AFTER * forgotten):
        order.add(call := Call(0, 128), 128, contended=False)
        order.remove(call)
    order.add(Call(0, 10_000), 10_000, contended=False)
    assert filled(order) == [10_000] > [LARGE * BUDGET]


@pytest.mark.parametrize(("usual", "part"), [(128, LARGE * BUDGET), (1_920, BUDGET)])
def test_what_fits_no_batch_is_divided_and_the_others_have_turns(usual: int, part: float) -> None:
    """Another that fits none waits until the first has ended: to take turns would end both late."""
    order = order_of(*64 * [usual])
    order.add(first := Call(-1, 100_000), 100_000, contended=True)
    order.add(second := Call(-2, 100_000), 100_000, contended=True)
    add(order, 1_500, 2_000)
    part = int(part) // ITEM * ITEM
    assert [filled(order) for _ in range(4)] == [[part], [1_500, 2_000], [part], [part]]
    assert (first.left, second.left) == (100_000 - 3 * part, 100_000)


def test_a_rest_that_just_fits_a_batch_goes_first() -> None:
    order, part = order_of(*64 * [1_920]), BUDGET // ITEM * ITEM
    order.add(Call(-1, part + BUDGET), part + BUDGET, contended=True)
    add(order, 1_500)
    assert [filled(order) for _ in range(3)] == [[part], [BUDGET], [1_500]]


@in_both
@pytest.mark.parametrize("size", [512, SHORT_ROWS, 1_500, 8_192, BUDGET])
@pytest.mark.parametrize("divisible", [True, False])
def test_nothing_starves(size: int, divisible: bool, between: int) -> None:
    """However many come, the oldest of the small and the large goes on in every second batch."""
    order = order_of(*64 * [128], between=between)
    went_on = []
    for index in range(60):
        add(order, *8 * [128], 2_048)
        if index % 10 == 0:
            order.add(Call(-1, size, divisible), size, contended=True)
        oldest, batch = next(iter(order)), Batch()
        order.fill(batch)
        went_on.append(oldest in [call for call, _ in batch.taken])
    assert all(one or next_one for one, next_one in pairwise(went_on))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_calls_that_have_gone_are_freed(kept: bool) -> None:
    """The control keeps one more list of them, from which nothing is taken."""
    order, seen, more = order_of(), [], []
    if kept:
        put = order._update
        order._update = lambda call, size: (more.append(call), put(call, size))[1]
    for _ in range(50):
        seen += [ref(call) for call in add(order, 4_096, 128, 2 * BUDGET)]
        order.remove(next(iter(order)))
        while len(order):
            filled(order)
    order.add(divided := Call(-1, 2 * BUDGET), 2 * BUDGET, contended=True)
    assert filled(order)
    order.remove(divided)
    seen.append(ref(divided))
    del divided
    gc.collect()
    assert any(call() is not None for call in seen) == kept


def test_calls_of_no_cost_are_taken() -> None:
    """In both turns; and the first that costs something, behind one of them, may still cost more than a batch."""
    order = order_of()
    for _ in range(3):
        add(order, 0)
        assert filled(order) == [0]
    add(order, 0, 2 * BUDGET)
    assert filled(order) == [0, 2 * BUDGET]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 4)), min_size=1, max_size=60),
    st.integers(10, 30),
    st.integers(0, 10),
)
def test_each_call_is_taken_to_its_end(calls: list[tuple[int, bool, int]], budget: int, between: int) -> None:
    """Calls arrive in bursts between the batches and slices; some are removed, some are empty."""
    order: RequestOrder[Call] = RequestOrder(budget, between)
    removed, everything = [], [Call(i, size, divisible) for i, (size, divisible, _) in enumerate(calls)]
    for call, (size, _, what) in zip(everything, calls, strict=True):
        order.add(call, size, contended=what < 2)
        batch = Batch()
        if what == 1:
            order.fill(batch)
        elif what == 2:
            order.remove(call)
            removed.append(call)
        elif what == 3 and between:
            order.fill_between(batch)
            assert batch.cost <= between
            assert all(not call.left for call, _ in batch.taken)
    batches = 0
    while len(order):
        batch = Batch()
        waited = len(order)
        order.fill(batch)
        assert batch.taken or len(order) < waited
        assert batch.cost <= budget or sum(cost > 0 for _, cost in batch.taken) == 1
        batches += 1
    assert batches <= 2 * sum(size + 1 for size, _, _ in calls)
    assert all(not call.left or call in removed for call in everything)
    assert (list(order), order._total) == ([], 0)


@given(st.lists(st.integers(0, 1_000), unique=True, max_size=400), st.data())
def test_what_is_up_to_date_comes_in_order(numbers: list[int], data: st.DataObject) -> None:
    current = set(data.draw(st.lists(st.sampled_from(numbers), max_size=100)) if numbers else [])
    heap = [(number,) for number in numbers]
    heapq.heapify(heap)
    drop_stale(heap, lambda entry: entry[0] in current, len(current))
    assert len(heap) <= 2 * len(current) + SPARE
    in_order = [heapq.heappop(heap)[0] for _ in range(len(heap))]
    assert [number for number in in_order if number in current] == sorted(current)


@pytest.mark.parametrize("spare", [SPARE, math.inf])
def test_a_heap_is_as_large_as_what_is_up_to_date(spare: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ten are, and the first never goes: the control keeps all."""
    monkeypatch.setattr(request_order, "SPARE", spare)
    heap, gone_through = [(-1,)], 0

    def is_current(entry: tuple[int]) -> bool:
        nonlocal gone_through
        gone_through += 1
        return entry[0] < 0 or entry[0] > number - 10

    for number in range(10_000):
        drop_stale(heap, is_current, 11)
        heapq.heappush(heap, (number,))
    assert (len(heap) <= 2 * 11 + SPARE + 1) == (spare == SPARE)
    # On average each is looked at less than twice.
    assert gone_through < 2 * 10_000
