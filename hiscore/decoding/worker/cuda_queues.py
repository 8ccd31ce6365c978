"""`DeviceQueues` on a CUDA device."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from hiscore.decoding.worker.device_queues import Event, Queue


class CudaQueues:
    """A CUDA stream for each queue, and a pool of events, as many as are ever in flight at once.

    The caching allocator knows nothing of waits: memory that one queue allocates and the other reads must be held
    until the reader has completed, or be announced to the allocator by `Tensor.record_stream`.
    """

    def __init__(self, device: torch.device) -> None:
        # COMPUTE has the higher priority: copies only fill what forwards leave idle.
        self._streams = {
            Queue.COMPUTE: torch.cuda.Stream(device, priority=-1),
            Queue.OFFLOAD: torch.cuda.Stream(device, priority=0),
            Queue.RESTORE: torch.cuda.Stream(device, priority=0),
        }
        self._events: list[torch.cuda.Event] = []
        self._free: list[Event] = []

    def use(self, queue: Queue) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[queue])

    def event(self) -> Event:
        if self._free:
            return self._free.pop()
        self._events.append(torch.cuda.Event())
        return Event(len(self._events) - 1)

    def recycle(self, event: Event) -> None:
        self._free.append(event)

    def record(self, event: Event, queue: Queue) -> None:
        self._events[event].record(self._streams[queue])

    def wait(self, queue: Queue, event: Event) -> None:
        self._streams[queue].wait_event(self._events[event])

    def completed(self, event: Event) -> bool:
        return bool(self._events[event].query())
