"""Copies from and to the host that complete as late as possible."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import DeviceQueues, Queue
from hiscore.decoding.worker.offload_schedule import Event
from hiscore.decoding.worker.worker import CacheWorker


class LateCopies(DeviceQueues):
    """The CPU's queues, but copies run as late as possible: when a forward waits for them.

    A copy that is launched without a wait for the forwards before it is a failed assertion.

    Args:
        polls: How often an event may be polled before its copy runs, so that sequences drain in the end.
        deaf_to: The control: forwards wait for nothing on this queue.
    """

    def __init__(self, polls: int, deaf_to: Queue | None = None) -> None:
        self.in_flight: dict[Event, Queue] = {}
        self._polls, self._deaf_to = polls, deaf_to
        self._numbers, self._asked = count(), 0
        self._queue = Queue.COMPUTE
        self._computed: Event | None = None  # behind all forwards
        self._behind: set[Queue] = set()  # all forwards
        self._copies: dict[Queue, deque[Callable[[], None] | int]] = {
            Queue.OFFLOAD: deque(),
            Queue.RESTORE: deque(),
        }

    def install(self, worker: CacheWorker) -> CacheWorker:
        worker._queues = worker._copies.queues = worker._restores.queues = self
        worker._ops = worker._copies.ops = _LateOps(worker._ops, self)
        restore_index = worker._model.restore_index

        def late_index(slots: Tensor, host_pages: Tensor) -> None:
            self.copy(lambda: restore_index(slots, host_pages))

        worker._model.restore_index = late_index  # type: ignore[method-assign]
        return worker

    def copy(self, launch: Callable[[], None]) -> None:
        if self._queue in self._copies:
            self._copies[self._queue].append(launch)
        else:
            launch()

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        if queue is Queue.COMPUTE:
            self._computed = None
            self._behind.clear()
        assert queue is Queue.COMPUTE or queue in self._behind, (
            "a copy may run before what it reads is computed"
        )
        self._queue = queue
        try:
            yield
        finally:
            self._queue = Queue.COMPUTE

    def record(self, queue: Queue) -> Event:
        event = next(self._numbers)
        if queue in self._copies:
            self._copies[queue].append(event)
            self.in_flight[event] = queue
        else:
            self._computed = event
        return event

    def wait(self, queue: Queue, event: Event) -> None:
        if queue is not Queue.COMPUTE and event == self._computed:
            self._behind.add(queue)
        if queue is Queue.COMPUTE and self.in_flight.get(event) is not self._deaf_to:
            self._run_to(event)

    def completed(self, event: Event) -> bool:
        self._asked += event in self.in_flight
        if self._asked >= self._polls:
            self._asked = 0
            self._run_to(event)
        return event not in self.in_flight

    @torch.inference_mode()
    def _run_to(self, event: int) -> None:
        while event in self.in_flight:
            entry = self._copies[self.in_flight[event]].popleft()
            if isinstance(entry, int):
                del self.in_flight[entry]
            else:
                entry()


class _LateOps:
    """A worker's cache operations, with copies from and to the host through `LateCopies`."""

    def __init__(self, ops: CacheOps, late: LateCopies) -> None:
        self._ops, self._late = ops, late

    def offload_step(self, *slots: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_step(*slots))

    def offload_prompt(self, *prompt: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_prompt(*prompt))

    def restore_prompt(self, *prompt: Tensor) -> None:
        self._late.copy(lambda: self._ops.restore_prompt(*prompt))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)
