"""Whose turn it is where batches are launched in slices: by example, and simulated under load."""

import gc
from itertools import pairwise
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.prefill.row_counts import SHORT_ROWS
from hiscore.serving.queue_order import QueueOrder
from hiscore.serving.sliced_order import LARGE, MANY, SlicedOrder
from tests.support.batch_simulator import ITEM, Batch, Call, FirstCome, p99_of

BUDGET, BETWEEN = 16_384, SHORT_ROWS


@pytest.mark.slow
def test_short_calls_wait_for_a_slice_and_long_ones_hardly_longer() -> None:
    """Both controls miss one aim: first come, first served, and parts of large calls in place of slices."""
    short, long = p99_of(lambda: SlicedOrder(BUDGET, BETWEEN))
    short_before, long_before = p99_of(lambda: FirstCome(BUDGET))
    short_parts, long_parts = p99_of(lambda: QueueOrder(BUDGET))
    assert short <= 2.6 < 2.7 < short_parts < 4.0 < short_before
    assert long <= 1.25 * long_before < long_parts


def order_of(*usual: int) -> SlicedOrder[Call]:
    """An order that has seen calls come and go."""
    order: SlicedOrder[Call] = SlicedOrder(BUDGET, BETWEEN)
    for size in usual:
        order.add(call := Call(0, size), size, contended=True)
        order.remove(call)
    return order


def add(order: SlicedOrder[Call], *sizes: int) -> list[Call]:
    calls = [Call(index, size, divisible=False) for index, size in enumerate(sizes)]
    for call in calls:
        order.add(call, call.left, contended=True)
    return calls


def filled(order: SlicedOrder[Call], between: bool = False) -> list[int]:
    """The costs of what the next batch takes."""
    batch = Batch()
    if between:
        assert order.fill_between(batch) == bool(batch.taken)
    else:
        order.fill(batch)
    return [cost for _, cost in batch.taken]


def test_small_and_large_ones_have_turns() -> None:
    """Also between slices, where no batch costs more than it may, and the next slice has every second turn."""
    order = order_of(*64 * [128])
    add(order, 4_096, 2_048, 8_192, *10 * [256])
    assert filled(order) == 4 * [256]
    assert filled(order) == [4_096, 2_048]
    assert [filled(order, between=True) for _ in range(5)] == [4 * [256], [], 2 * [256], [], []]
    assert filled(order) == [8_192]


def test_a_small_rest_waits_for_the_part_before_it() -> None:
    """Else its last part would end first, and the answer would be in another order."""
    order = order_of(*64 * [1_920])
    order.add(Call(-1, BUDGET + 128), BUDGET + 128, contended=True)
    assert filled(order) == [BUDGET]
    add(order, 256)
    assert [filled(order, between=True) for _ in range(2)] == [[256], []]
    assert filled(order) == [128]


def test_a_small_one_that_has_become_large_keeps_nobody_waiting() -> None:
    """What it shared is not there any more: it has its turn among the large ones."""
    order = order_of(*64 * [128])
    grown, *_ = add(order, 128, 128, 4_096)
    grown.left = 3_000
    assert filled(order, between=True) == [128]
    assert filled(order) == [3_000]
    assert filled(order) == [4_096]


def test_many_small_ones_fill_batches() -> None:
    """And interrupt nobody: small batches would mostly pay for the start of a forward."""
    order = order_of(*64 * [128])
    count = MANY * BETWEEN // 128
    add(order, *count * [128])
    assert filled(order, between=True) == BETWEEN // 128 * [128]
    add(order, *3 * count * [128])
    assert filled(order, between=True) == filled(order, between=True) == []
    assert sum(filled(order)) > 2 * MANY * BETWEEN


def test_a_load_of_equal_calls_fills_batches() -> None:
    order = order_of(*64 * [1_920])
    add(order, *64 * [1_920])
    assert not order.expects_small()
    assert filled(order) == 8 * [1_920]


def test_a_call_to_an_idle_server_is_taken_whole() -> None:
    """Whatever came before."""
    order = order_of(*64 * [128])
    order.add(Call(0, 10_000), 10_000, contended=False)
    assert filled(order) == [10_000] > [LARGE * BUDGET]


@pytest.mark.parametrize(("usual", "part"), [(128, LARGE * BUDGET), (1_920, BUDGET)])
def test_what_fits_no_batch_is_divided_and_the_others_have_turns(usual: int, part: float) -> None:
    order = order_of(*64 * [usual])
    order.add(Call(-1, 100_000), 100_000, contended=True)
    add(order, 1_500, 2_000)
    part = int(part) // ITEM * ITEM
    assert [filled(order) for _ in range(4)] == [[part], [1_500, 2_000], [part], [part]]


@pytest.mark.parametrize("size", [512, BETWEEN, 1_500, 8_192, BUDGET])
def test_nothing_starves(size: int) -> None:
    """However many come, the oldest of the small and the large goes on in every second batch."""
    order = order_of(*64 * [128])
    went_on = []
    for index in range(60):
        add(order, *8 * [128], 2_048)
        if index % 10 == 0:
            add(order, size)
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
        put = order._put
        order._put = lambda call, size: (more.append(call), put(call, size))[1]
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
    st.integers(1, 10),
)
def test_every_call_is_taken_to_its_end(
    calls: list[tuple[int, bool, int]], budget: int, between: int
) -> None:
    """Calls arrive in bursts between the batches and slices; some are removed, some are empty."""
    order: SlicedOrder[Call] = SlicedOrder(budget, between)
    removed, everything = [], [Call(i, size, divisible) for i, (size, divisible, _) in enumerate(calls)]
    for call, (size, _, what) in zip(everything, calls, strict=True):
        order.add(call, size, contended=what < 2)
        batch = Batch()
        if what == 1:
            order.fill(batch)
        elif what == 2:
            order.remove(call)
            removed.append(call)
        elif what == 3:
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
