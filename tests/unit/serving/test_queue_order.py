"""Whose turn it is, simulated: one device, Poisson arrivals, service time in proportion to tokens plus a floor.

Times are in units of the time that one more token takes. On an H200 with 0.6B parameters that is 1.7 microseconds;
a forward then has a floor of 600 tokens, and a call spends another 1,200 outside of the device
(perf/results/h200/README.md). A call's own service time is the sum: what it takes alone. At 80% load calls arrive
so often that the sum of their own service times is 80% of the time. The device takes one batch after the other.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.serving.queue_order import FORGET_AFTER, QueueOrder

FLOOR, OUTSIDE = 600, 1_200
BUDGET = 16_384
ITEM = 64


class Call:
    """`left` tokens, taken by the item."""

    def __init__(self, index: int, left: int, divisible: bool = True) -> None:
        self.index, self.left = index, left
        self.item = ITEM if divisible else left


class Batch:
    """`OpenBatch` of calls."""

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


class FirstCome:
    """The order before: whole calls as they come, up to a full batch."""

    def __init__(self) -> None:
        self.waiting: list[Call] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, call: Call, size: int, contended: bool) -> None:
        self.waiting.append(call)

    def fill(self, batch: Batch) -> None:
        while self.waiting and (not batch.taken or batch.cost + self.waiting[0].left <= BUDGET):
            batch.take(self.waiting.pop(0), BUDGET, at_least_one=True)


def sojourns(order: QueueOrder[Call] | FirstCome, arrivals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How long each call takes from its arrival to its answer."""
    now, index = 0.0, 0
    ends = np.zeros(len(sizes))
    while index < len(sizes) or len(order):
        if not len(order):
            now = max(now, arrivals[index])
        while index < len(sizes) and arrivals[index] <= now:
            size = int(sizes[index])
            order.add(Call(index, size), size, contended=arrivals[index] < now or len(order) > 0)
            index += 1
        batch = Batch()
        order.fill(batch)
        assert batch.taken, "the device would stand still"
        now += FLOOR + batch.cost
        ends[[call.index for call, _ in batch.taken if not call.left]] = now
    return ends - arrivals + OUTSIDE


def p99_of(make: Callable[[], QueueOrder[Call] | FirstCome], calls: int = 30_000) -> tuple[float, float]:
    """The p99 of the short calls in their own service times, and that of the long ones in tokens.

    Sizes from 128 to 8,192, as many tokens of each.
    """
    weights = 2.0 ** -np.arange(7)
    short, long = [], []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        sizes = 128 * 2 ** rng.choice(7, calls, p=weights / weights.sum())
        alone = sizes + FLOOR + OUTSIDE
        arrivals = np.cumsum(rng.exponential(alone.mean() / 0.8, calls))
        took = sojourns(make(), arrivals, sizes)
        short.append((took / alone)[sizes <= 512])
        long.append(took[sizes >= 4_096])
    return float(np.percentile(np.concatenate(short), 99)), float(np.percentile(np.concatenate(long), 99))


@pytest.mark.slow
def test_short_calls_are_not_held_up_and_long_ones_hardly_later() -> None:
    """First come, first served is the control: there the short ones wait for the long."""
    short, long = p99_of(lambda: QueueOrder(BUDGET))
    short_before, long_before = p99_of(FirstCome)
    assert short <= 3.0 < 4.0 < short_before
    assert long <= 1.3 * long_before


def remember(order: QueueOrder[Call], *sizes: int) -> None:
    """Calls that came and went."""
    for size in sizes:
        order.add(call := Call(0, size), size, contended=True)
        order.remove(call)


def test_nothing_starves() -> None:
    """However many short calls come, a long one goes on in every batch; one that cannot be divided is next."""
    for divisible in (True, False):
        order: QueueOrder[Call] = QueueOrder(BUDGET)
        long = Call(-1, 8_192, divisible)
        for index in range(64):
            order.add(Call(index, 128), 128, contended=True)
        order.add(long, 8_192, contended=True)
        batches = 0
        while long.left:
            for index in range(64):
                order.add(Call(index, 128), 128, contended=True)
            order.fill(Batch())
            batches += 1
        assert batches <= (16 if divisible else 2)


def test_the_shortest_go_along_with_one_that_cannot_be_divided() -> None:
    order: QueueOrder[Call] = QueueOrder(BUDGET)
    remember(order, *64 * [128])
    for index, size in enumerate([8_192, 8_192, 128, 128]):
        order.add(Call(index, size, divisible=False), size, contended=True)
    batch = Batch()
    order.fill(batch)
    assert [call.index for call, _ in batch.taken] == [0, 2, 3]


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
    assert order.limit() == BUDGET
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
