"""Whose turn it is: by example, and simulated under load (`tests/support/batch_simulator.py`)."""

import gc
import math
from itertools import pairwise
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.serving import stale_entries
from hiscore.serving.queue_order import QueueOrder
from hiscore.serving.request_order import FORGET_AFTER
from tests.support.batch_simulator import Batch, Call, FirstCome, alone, p99_of

BUDGET = 16_384


def test_the_simulated_host_and_device_are_those_that_were_measured() -> None:
    """What a call of 128 and of 8,192 tokens takes alone, in perf/results/h200/mixed_lengths.json."""
    assert alone(128) == pytest.approx(3.14, rel=0.05)
    assert alone(8_192) == pytest.approx(16.96, rel=0.05)


@pytest.mark.slow
def test_short_calls_are_not_held_up_and_long_ones_hardly_later() -> None:
    """First come, first served is the control: there the short ones wait for the long.

    So is the same order with each batch launched as soon as there is room.
    """
    short, long = p99_of(lambda: QueueOrder(BUDGET))
    short_before, long_before = p99_of(lambda: FirstCome(BUDGET))
    assert short <= 3.0 < 4.0 < short_before
    assert long <= 1.3 * long_before
    short_at_once, _ = p99_of(lambda: QueueOrder(BUDGET), hold=False)
    assert short_at_once > 3.0


def remember(order: QueueOrder[Call], *sizes: int) -> None:
    """Calls that came and went."""
    for size in sizes:
        order.add(call := Call(0, size), size, contended=True)
        order.remove(call)


@pytest.mark.parametrize("divisible", [True, False])
@pytest.mark.parametrize("tokens", [8_192, BUDGET])
def test_nothing_starves(divisible: bool, tokens: int) -> None:
    """However many short and middling calls come, the oldest goes on in every second batch."""
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    went_on = []
    for index in range(60):
        for short in range(64):
            order.add(Call(short, 128), 128, contended=True)
        order.add(Call(64, 1_024), 1_024, contended=True)
        if index % 10 == 0:
            order.add(Call(-1, tokens, divisible), tokens, contended=True)
        oldest, batch = next(iter(order)), Batch()
        order.fill(batch)
        went_on.append(oldest in [call for call, _ in batch.taken])
    assert all(one or next_one for one, next_one in pairwise(went_on))


def test_after_one_that_fills_a_batch_the_others_have_one() -> None:
    """The small ones, or those of middling size if there is no small one; never first these and then those."""
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *64 * [128])
    for size in (BUDGET, BUDGET, 128, 128, 1_024):
        order.add(Call(size, size, divisible=False), size, contended=True)
    batches = []
    for _ in range(4):
        batch = Batch()
        order.fill(batch)
        batches.append([call.index for call, _ in batch.taken])
    assert batches == [[BUDGET], [128, 128], [BUDGET], [1_024]]


def test_the_shortest_go_along_with_one_that_cannot_be_divided() -> None:
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *64 * [128])
    for index, size in enumerate([8_192, 8_192, 128, 128]):
        order.add(Call(index, size, divisible=False), size, contended=True)
    batch = Batch()
    order.fill(batch)
    assert [call.index for call, _ in batch.taken] == [0, 2, 3]


def test_the_shortest_goes_along_whatever_the_oldest_took() -> None:
    """Else one of middling size would wait until it is the oldest."""
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *64 * [128])
    for index, size in enumerate([8_192, 512, 512]):
        order.add(Call(index, size), size, contended=True)
    batch = Batch()
    order.fill(batch)
    assert [call.index for call, _ in batch.taken] == [0, 1]
    assert order.limit() - batch.taken[0][1] < 512


def test_a_load_of_equal_calls_fills_batches() -> None:
    """Small batches are for small calls: these would only pay for more forwards."""
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    for index in range(64):
        order.add(Call(index, 1_920), 1_920, contended=True)
    batch = Batch()
    order.fill(batch)
    assert [(call.index, cost) for call, cost in batch.taken] == [(index, 1_920) for index in range(8)]


def test_a_probe_now_and_then_makes_no_batch_small() -> None:
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *8 * [2], *56 * [1_920])
    assert order.limit() >= 8 * 1_920
    remember(order, *9 * [2], *55 * [1_920])
    assert order.limit() < BUDGET // 8


def test_a_call_to_an_idle_server_is_not_divided() -> None:
    """Whatever came before, once enough calls have met nobody."""
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *64 * [128])
    for _ in range(64 * FORGET_AFTER):
        order.add(call := Call(0, 128), 128, contended=False)
        order.remove(call)
    order.add(Call(1, 8_192), 8_192, contended=False)
    batch = Batch()
    order.fill(batch)
    assert [cost for _, cost in batch.taken] == [8_192]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 3)), min_size=1, max_size=60),
    st.integers(1, 30),
)
def test_every_call_is_taken_to_its_end(calls: list[tuple[int, bool, int]], budget: int) -> None:
    """Calls arrive in bursts between the batches; some are removed."""
    order: QueueOrder[Call] = QueueOrder(budget)
    removed, everything = [], [Call(i, size, divisible) for i, (size, divisible, _) in enumerate(calls)]
    for call, (size, _, what) in zip(everything, calls, strict=True):
        order.add(call, size, contended=what < 2)
        if what == 1:
            order.fill(Batch())
        elif what == 2:
            order.remove(call)
            removed.append(call)
    batches = 0
    while len(order):
        batch = Batch()
        order.fill(batch)
        assert batch.taken
        assert batch.cost <= budget or len({call for call, _ in batch.taken}) <= 2
        batches += 1
    assert batches <= sum(size for size, _, _ in calls)
    assert all(not call.left or call in removed for call in everything)
    assert list(order) == []


def test_small_ones_have_every_second_batch_to_themselves() -> None:
    """Where they are to be expected; the control is a load of large calls, where the oldest goes along."""
    for usual, tokens in ((128, 20_000), (1_000, 100_000)):
        order: QueueOrder[Call] = QueueOrder(BUDGET)
        remember(order, *64 * [usual])
        order.add(long := Call(-1, tokens), tokens, contended=True)
        order.fill(Batch())
        order.add(small := Call(0, 128), 128, contended=True)
        second, third = Batch(), Batch()
        order.fill(second)
        order.add(Call(1, 128), 128, contended=True)
        order.fill(third)
        assert small in [call for call, _ in second.taken]
        assert (long in [call for call, _ in second.taken]) == (usual == 1_000)
        assert long in [call for call, _ in third.taken]


@pytest.mark.slow
@pytest.mark.parametrize("spare", [stale_entries.SPARE, math.inf])
def test_calls_that_have_gone_are_freed(spare: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fills a batch, so the shortest are never asked for. The control keeps all of them by size."""
    monkeypatch.setattr(stale_entries, "SPARE", spare)
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    seen = []
    for index in range(200):
        call = Call(index, BUDGET, divisible=False)
        order.add(call, BUDGET, contended=True)
        seen.append(ref(call))
        del call
        order.fill(Batch())
    assert not len(order)
    gc.collect()
    kept = sum(call() is not None for call in seen)
    assert (kept < 100) == (spare < math.inf)
