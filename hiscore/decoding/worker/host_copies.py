"""Launch copies to the host behind the forwards whose tokens they read, and forwards behind the copies they need.

`OffloadSchedule` says what waits for which copy; `HostCopies` carries it out on the device's queues.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import DeviceQueues, Event, Queue
from hiscore.decoding.worker.offload_schedule import OffloadSchedule


class HostCopies:
    """The copies of a worker, which `ops` launches on the queues in the order of the schedule."""

    def __init__(self, queues: DeviceQueues, schedule: OffloadSchedule, ops: CacheOps) -> None:
        self.queues, self.schedule, self.ops = queues, schedule, ops

    def collect(self) -> None:
        """Report the copies that have completed to the schedule."""
        while (done := self.schedule.oldest_copy) is not None and self.queues.completed(done):
            self.schedule.copy_completed()
            self.queues.recycle(done)

    def wait_for(self, event: Event | None) -> None:
        """Run what is launched on the COMPUTE queue from now on behind a copy."""
        if event is not None:
            self.queues.wait(Queue.COMPUTE, event)

    def before_step(self, seq_indices: Int32, positions: Int32) -> None:
        """Collect copies that have completed, and wait for those that a step needs."""
        self.collect()
        self.wait_for(self.schedule.step_waits_for(seq_indices, positions))

    def offload_step(self, slots: tuple[Tensor, Tensor], seq_indices: Int32, positions: Int32) -> None:
        """Copy a launched step's tokens to the host, from slots of the host and of the buffer, int32 [R] each."""
        self.schedule.step_launched(seq_indices, positions)
        with self.behind_forward():
            self._copy_step(slots)
        self.schedule.step_copied(self._record(Queue.OFFLOAD), seq_indices, positions)

    @contextmanager
    def behind_forward(self) -> Iterator[None]:
        """Use the OFFLOAD queue, behind all that was launched on the COMPUTE queue so far."""
        computed = self._record(Queue.COMPUTE)
        self.queues.wait(Queue.OFFLOAD, computed)
        self.queues.recycle(computed)
        with self.queues.use(Queue.OFFLOAD):
            yield

    def prompt_copied(self, seq_index: int, start: int, end: int, staging_pages: Int32) -> None:
        self.schedule.prompt_copied(self._record(Queue.OFFLOAD), seq_index, start, end, staging_pages)

    def drained(self, seq_index: int) -> bool:
        self.collect()
        return self.schedule.drained(seq_index)

    def _record(self, queue: Queue) -> Event:
        event = self.queues.event()
        self.queues.record(event, queue)
        return event

    def _copy_step(self, slots: tuple[Tensor, Tensor]) -> None:
        for each in slots:
            if each.is_cuda:
                # Allocated on the COMPUTE queue: the allocator must not reuse it before this copy has run.
                each.record_stream(torch.cuda.current_stream())
        self.ops.offload_step(*slots)
