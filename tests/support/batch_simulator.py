"""A scorer under load, simulated: a host thread, and a device that runs one batch after another.

Times are in ms, as measured on an H200 with 0.6B parameters (perf/results/h200/mixed_lengths.json): what a call
takes alone is reproduced to 5% from 128 to 8,192 tokens. The host does one thing at a time. A call that arrives is
accepted and, if there is room, launched at once; a batch that ends is answered, then the next one is launched.
"""

import heapq
from collections.abc import Callable
from typing import Protocol

import numpy as np

ACCEPT, LAUNCH, LAUNCH_TOKEN, COLLECT = 0.1, 0.9, 6e-5, 0.25
FORWARD, FORWARD_TOKEN = 0.75, 1.68e-3
OUTSIDE = 0.9
"""Triton and gRPC."""
IN_FLIGHT = 2
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


class Order(Protocol):
    """Whose turn it is: what is simulated."""

    def __len__(self) -> int: ...

    def add(self, call: Call, size: int, contended: bool) -> None: ...

    def fill(self, batch: Batch) -> None: ...


class FirstCome:
    """Whole calls as they come, up to a full batch."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._waiting: list[Call] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Call, size: int, contended: bool) -> None:
        self._waiting.append(call)

    def fill(self, batch: Batch) -> None:
        while self._waiting and (not batch.taken or batch.cost + self._waiting[0].left <= self._budget):
            batch.take(self._waiting.pop(0), self._budget, at_least_one=True)


def alone(tokens: np.ndarray) -> np.ndarray:
    """A call's own service time, in ms."""
    return ACCEPT + LAUNCH + FORWARD + COLLECT + OUTSIDE + (LAUNCH_TOKEN + FORWARD_TOKEN) * tokens


def sojourns(order: Order, arrivals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How long each call takes from its arrival to its answer, in ms."""
    answered = np.zeros(len(sizes))
    # When, the arrival before the end, and of which call or batch.
    events: list[tuple[float, int, int]] = [(at, 0, index) for index, at in enumerate(arrivals)]
    heapq.heapify(events)
    running: list[Batch] = []
    host = device = 0.0
    batches = 0
    while events:
        at, is_end, index = heapq.heappop(events)
        host = max(host, at)
        if is_end:
            host += COLLECT
            for call, _ in running.pop(0).taken:
                if not call.left:
                    answered[call.index] = host
        else:
            contended = bool(running) or len(order) > 0
            host += ACCEPT
            order.add(Call(index, int(sizes[index])), int(sizes[index]), contended)
        while len(order) and len(running) < IN_FLIGHT:
            batch = Batch()
            order.fill(batch)
            assert batch.taken, "the device would stand still"
            running.append(batch)
            host += LAUNCH + LAUNCH_TOKEN * batch.cost
            device = max(device, host) + FORWARD + FORWARD_TOKEN * batch.cost
            heapq.heappush(events, (device, 1, batches := batches + 1))
    return answered - arrivals + OUTSIDE


def p99_of(make: Callable[[], Order], load: float = 0.8, calls: int = 20_000) -> tuple[float, float]:
    """The p99 of the short calls (to 512) in their own service times, and that of the long (from 4,096) in ms.

    Poisson arrivals of 128 to 8,192 tokens, as many tokens of each size; the load is the sum of the calls' own
    service times over time.
    """
    weights = 2.0 ** -np.arange(7)
    short, long = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = 128 * 2 ** rng.choice(7, calls, p=weights / weights.sum())
        own = alone(sizes)
        took = sojourns(make(), np.cumsum(rng.exponential(own.mean() / load, calls)), sizes)
        short.append((took / own)[sizes <= 512])
        long.append(took[sizes >= 4_096])
    return float(np.percentile(np.concatenate(short), 99)), float(np.percentile(np.concatenate(long), 99))
