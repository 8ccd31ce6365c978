"""Copies from and to the host that complete as late as possible."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import Event, ImmediateQueues, Queue
from hiscore.decoding.worker.worker import CacheWorker


class LateCopies(ImmediateQueues):
    """The CPU's queues, but copies run as late as possible: when a forward waits for them.

    Args:
        polls: How often an event may be polled before its copy runs, so that sequences drain in the end.
        deaf_to: The control: forwards wait for nothing on this queue.
    """

    def __init__(self, polls: int, deaf_to: Queue | None = None) -> None:
        self.in_flight: dict[int, Queue] = {}
        self.taken: set[Event] = set()
        """Events that were taken from the pool and have not come back."""
        self._polls, self._deaf_to = polls, deaf_to
        self._numbers, self._asked = count(), 0
        self._queue = Queue.COMPUTE
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

    def kept(self, worker: CacheWorker) -> set[Event]:
        """Events that have not come back when all copies have landed: there would be ever more of them."""
        while worker._copies.schedule.oldest_copy is not None:
            worker._copies.collect()
        return self.taken

    def copy(self, launch: Callable[[], None]) -> None:
        if self._queue in self._copies:
            self._copies[self._queue].append(launch)
        else:
            launch()

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        self._queue = queue
        try:
            yield
        finally:
            self._queue = Queue.COMPUTE

    def event(self) -> Event:
        event = Event(next(self._numbers))
        self.taken.add(event)
        return event

    def recycle(self, event: Event) -> None:
        self._check(event)
        self.taken.remove(event)

    def record(self, event: Event, queue: Queue) -> None:
        self._check(event)
        if queue in self._copies:
            self._copies[queue].append(event)
            self.in_flight[event] = queue

    def wait(self, queue: Queue, event: Event) -> None:
        self._check(event)
        if queue is Queue.COMPUTE and self.in_flight.get(event) is not self._deaf_to:
            self._run_to(event)

    def completed(self, event: Event) -> bool:
        self._check(event)
        self._asked += event in self.in_flight
        if self._asked >= self._polls:
            self._asked = 0
            self._run_to(event)
        return event not in self.in_flight

    def _check(self, event: Event) -> None:
        """Whoever gave an event back must not use it: by then it may be another's."""
        assert event in self.taken, "an event was used that has been given back"

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
