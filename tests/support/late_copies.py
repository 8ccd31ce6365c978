"""Offloads that complete as late as possible."""

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
    """The CPU's queues, but copies to the host run as late as possible: when a forward waits for them.

    Args:
        patience: How often an event may be polled before its copy runs, so that sequences drain in the end.
        deaf: The control: forwards wait for nothing.
    """

    def __init__(self, patience: int, deaf: bool = False) -> None:
        self.in_flight: set[int] = set()
        self._patience, self._deaf = patience, deaf
        self._numbers, self._asked = count(), 0
        self._queue = Queue.COMPUTE
        self._offload: deque[Callable[[], None] | int] = deque()

    def install(self, worker: CacheWorker) -> CacheWorker:
        """Let the worker launch on these queues."""
        worker._queues = worker._copies.queues = self
        worker._ops = worker._copies.ops = _LateOps(worker._ops, self)
        return worker

    def copy(self, launch: Callable[[], None]) -> None:
        """Launch a copy on the queue in use."""
        if self._queue is Queue.OFFLOAD:
            self._offload.append(launch)
        else:
            launch()

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        self._queue = queue
        yield
        self._queue = Queue.COMPUTE

    def event(self) -> Event:
        return Event(next(self._numbers))

    def record(self, event: Event, queue: Queue) -> None:
        if queue is Queue.OFFLOAD:
            self._offload.append(event)
            self.in_flight.add(event)

    def wait(self, queue: Queue, event: Event) -> None:
        if queue is Queue.COMPUTE and not self._deaf:
            self._run_to(event)

    def completed(self, event: Event) -> bool:
        self._asked += event in self.in_flight
        if self._asked >= self._patience:
            self._asked = 0
            self._run_to(event)
        return event not in self.in_flight

    def block(self, event: Event) -> None:
        self._run_to(event)

    @torch.inference_mode()
    def _run_to(self, event: int) -> None:
        while event in self.in_flight:
            entry = self._offload.popleft()
            if isinstance(entry, int):
                self.in_flight.discard(entry)
            else:
                entry()


class _LateOps:
    """A worker's cache operations, with copies to the host through `LateCopies`."""

    def __init__(self, ops: CacheOps, late: LateCopies) -> None:
        self._ops, self._late = ops, late

    def offload_step(self, *slots: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_step(*slots))

    def offload_prompt(self, *prompt: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_prompt(*prompt))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)
