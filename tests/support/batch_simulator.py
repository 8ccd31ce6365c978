"""A scorer under load, simulated: a host thread, and a device that runs one batch after another.

Times are in ms, as measured on an H200 with 0.6B parameters (mixed_lengths.json and forward.json of
perf/results/h200): what a call takes alone is reproduced to 5% from 128 to 8,192 tokens, the p99 of the short ones
under load to 3%. The host does one thing at a time. A call that arrives is accepted and, if there is room,
launched at once; a batch that ends is answered, then the next one is launched. Where small calls are to be
expected, the second batch waits until it is due (hiscore/batching/launch_pace.py). A batch in slices is so many
launches, with others in between.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from hiscore.batching.launch_pace import LaunchPace
from hiscore.prefill.row_counts import slices_of

ACCEPT, LAUNCH, LAUNCH_TOKEN, COLLECT = 0.1, 0.9, 6e-5, 0.25
FORWARD, FORWARD_TOKEN = 1.03, 1.68e-3
SLICE_LAUNCH, SLICE_EARLY, SLICE_COLLECT, SLICE_GAP = 0.15, 0.05, 0.05, 0.03
"""The same of a slice behind another, and what each adds on the device: assumed, not measured."""
EARLY = 0.28
"""Of a forward, where the device is idle: its first kernels run while the rest are being launched."""
JITTER, WAKE = 0.05, 0.3
"""Of a forward's time: its standard deviation. And how late the alarm wakes at most."""
OUTSIDE = 0.9
"""Triton and gRPC."""
IN_FLIGHT = 2
LAYERS = 28
ITEM = 64
ARRIVAL, END, ALARM = range(3)


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


class Order(Protocol):
    """Whose turn it is: what is simulated."""

    def __len__(self) -> int: ...

    def add(self, call: Call, size: int, contended: bool) -> None: ...

    def expects_small(self) -> bool: ...

    def fill(self, batch: Batch) -> None: ...

    def fill_between(self, batch: Batch) -> bool: ...


class FirstCome:
    """Whole calls as they come, up to a full batch."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._waiting: list[Call] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Call, size: int, contended: bool) -> None:
        self._waiting.append(call)

    def expects_small(self) -> bool:
        return False

    def fill(self, batch: Batch) -> None:
        while self._waiting and (not batch.taken or batch.cost + self._waiting[0].left <= self._budget):
            batch.take(self._waiting.pop(0), self._budget, at_least_one=True)

    def fill_between(self, batch: Batch) -> bool:
        raise AssertionError("it is for batches that are launched as a whole")


def alone(tokens: np.ndarray) -> np.ndarray:
    return ACCEPT + LAUNCH + FORWARD - EARLY + COLLECT + OUTSIDE + (LAUNCH_TOKEN + FORWARD_TOKEN) * tokens


class Launch(NamedTuple):
    """Of a batch or a slice of it: what it costs, ends, and takes the host and the device, in ms."""

    cost: float
    ends: list[tuple[Call, int]]
    host: float
    early: float
    device: float
    collect: float


def launches(batch: Batch, in_slices: bool) -> list[Launch]:
    slices = len(slices_of(batch.cost, LAYERS)) if in_slices else 1
    host, device = LAUNCH + LAUNCH_TOKEN * batch.cost, FORWARD + FORWARD_TOKEN * batch.cost
    if slices == 1:
        return [Launch(batch.cost, batch.taken, host, EARLY, device, COLLECT)]
    cost, device = batch.cost / slices, device / slices + SLICE_GAP
    first = Launch(cost, [], host, EARLY, device, SLICE_COLLECT)
    slice_ = Launch(cost, [], SLICE_LAUNCH, SLICE_EARLY, device, SLICE_COLLECT)
    return [first, *(slices - 2) * [slice_], slice_._replace(ends=batch.taken, collect=COLLECT)]


def sojourns(
    order: Order,
    arrivals: np.ndarray,
    sizes: np.ndarray,
    seed: int = 0,
    hold: bool = True,
    in_slices: bool = False,
) -> np.ndarray:
    """The time of each call from its arrival to its answer, in ms. `hold`: back a batch until it is due."""
    rng = np.random.default_rng(seed)
    answered = np.zeros(len(sizes))
    # When, what, and of which call or launch.
    events: list[tuple[float, int, int]] = [(at, ARRIVAL, index) for index, at in enumerate(arrivals)]
    heapq.heapify(events)
    running: list[Launch] = []
    opened: deque[Launch] = deque()  # the slices of a batch that are yet to be launched
    pace = LaunchPace()
    host = device = due = 0.0
    launched = 0
    while events:
        at, what, index = heapq.heappop(events)
        host = max(host, at)
        if what == END:
            pace.finished(at / 1e3)
            ended = running.pop(0)
            host += ended.collect
            for call, _ in ended.ends:
                if not call.left:
                    answered[call.index] = host
        elif what == ARRIVAL:
            contended = bool(running) or len(order) > 0
            host += ACCEPT
            order.add(Call(index, int(sizes[index])), int(sizes[index]), contended)
        while (len(order) or opened) and len(running) < IN_FLIGHT:
            if hold and running and order.expects_small() and (now_due := 1e3 * pace.due()) > host:
                if now_due != due:
                    due = now_due
                    heapq.heappush(events, (due + rng.uniform(0, WAKE), ALARM, 0))
                break
            batch = Batch()
            if not opened:
                order.fill(batch)
                assert batch.taken, "the device would stand still"
                opened.extend(launches(batch, in_slices))
                launch = opened.popleft()
            elif order.fill_between(batch):
                (launch,) = launches(batch, in_slices=True)
            else:
                launch = opened.popleft()
            running.append(launch)
            began, host = host, host + launch.host
            pace.launched(launch.cost, began / 1e3, host / 1e3)
            took = launch.device * max(0.5, rng.normal(1, JITTER))
            device = max(device, host - launch.early) + took
            heapq.heappush(events, (device, END, launched := launched + 1))
    return answered - arrivals + OUTSIDE


def p99_of(
    make: Callable[[], Order],
    load: float = 0.8,
    calls: int = 40_000,
    hold: bool = True,
    in_slices: bool = False,
) -> tuple[float, float]:
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
        arrivals = np.cumsum(rng.exponential(own.mean() / load, calls))
        took = sojourns(make(), arrivals, sizes, seed, hold, in_slices)
        short.append((took / own)[sizes <= 512])
        long.append(took[sizes >= 4_096])
    return float(np.percentile(np.concatenate(short), 99)), float(np.percentile(np.concatenate(long), 99))
