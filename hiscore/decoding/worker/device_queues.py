"""The work queues of a device and the events between them.

Work launched on a queue runs in the order of its launches. The queues run side by side, except for what `wait`
orders.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from typing import Any

import torch

from hiscore.decoding.worker.offload_schedule import Event


class Queue(Enum):
    """COMPUTE: prefills, decode steps, everything else that forwards need. OFFLOAD: copies to the host. RESTORE:
    copies of sequences from there.
    """

    COMPUTE = "compute"
    OFFLOAD = "offload"
    RESTORE = "restore"


class DeviceQueues:
    """The queues. None of the methods makes the host wait.

    On a CPU, as here, work has completed when its launch returns, so nothing ever waits.
    """

    def use(self, queue: Queue) -> AbstractContextManager[Any]:
        """Launch everything inside the context on this queue."""
        return nullcontext()

    def record(self, queue: Queue) -> Event:
        """Return an event that completes when all work launched on the queue so far has completed."""
        return 0

    def wait(self, queue: Queue, event: Event) -> None:
        """Run what is launched on the queue from now on after the event."""

    def completed(self, event: Event) -> bool:
        """Return whether the event has completed."""
        return True


@contextmanager
def behind_forwards(queues: DeviceQueues, queue: Queue) -> Iterator[None]:
    """Use a queue of copies, behind all that was launched on the COMPUTE queue so far."""
    queues.wait(queue, queues.record(Queue.COMPUTE))
    with queues.use(queue):
        yield


class CudaQueues(DeviceQueues):
    """The queues of a CUDA device: a stream for each.

    The caching allocator knows nothing of waits: memory that one queue allocates and the other reads must be held
    until the reader has completed, or be announced to the allocator by `Tensor.record_stream`.
    """

    def __init__(self, device: torch.device) -> None:
        # COMPUTE has the higher priority: copies only fill what forwards leave idle.
        self._streams = {
            queue: torch.cuda.Stream(device, priority=-1 if queue is Queue.COMPUTE else 0) for queue in Queue
        }

    def use(self, queue: Queue) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[queue])

    def record(self, queue: Queue) -> Event:
        event = torch.cuda.Event()
        event.record(self._streams[queue])
        return event

    def wait(self, queue: Queue, event: Event) -> None:
        self._streams[queue].wait_event(event)

    def completed(self, event: Event) -> bool:
        return bool(event.query())
