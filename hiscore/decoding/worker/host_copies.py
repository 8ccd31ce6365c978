"""Launch copies to and from the host behind forwards, and forwards behind the copies that they need.

`OffloadSchedule` says what waits for which copy to the host; `HostCopies` carries it out on the device's queues.

Copies from there, of sequences into staging, run beside others' forwards (`Restores`). Three rules order them:

- A copy waits for all that was launched on the COMPUTE queue before it: until then, what its staging pages held
  may be read there.
- A prefill or an admission, which reads the copied tokens, makes the COMPUTE queue wait for the copy. The
  scheduler launches it when the copy has landed, so that running sequences need not wait with it.
- A sequence is not drained until its copy has landed. So no other is given its pages, neither those that the copy
  reads on the host nor those that it writes.

Ranks that share the host pool bring each other what they read: their copies stay on the COMPUTE queue, where all
ranks exchange in one order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import DeviceQueues, Queue, behind_forwards
from hiscore.decoding.worker.offload_schedule import Event, OffloadSchedule


class HostCopies:
    """The copies of a worker, which `ops` launches on the queues in the order of the schedule."""

    def __init__(self, queues: DeviceQueues, schedule: OffloadSchedule, ops: CacheOps) -> None:
        self.queues, self.schedule, self.ops = queues, schedule, ops

    def collect(self) -> None:
        """Report the copies that have completed to the schedule."""
        while (done := self.schedule.oldest_copy) is not None and self.queues.completed(done):
            self.schedule.copy_completed()

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
        with behind_forwards(self.queues, Queue.OFFLOAD):
            self._copy_step(slots)
        self.schedule.step_copied(self.queues.record(Queue.OFFLOAD), seq_indices, positions)

    def prompt_copied(self, seq_index: int, start: int, end: int, staging_pages: Int32) -> None:
        self.schedule.prompt_copied(self.queues.record(Queue.OFFLOAD), seq_index, start, end, staging_pages)

    def drained(self, seq_index: int) -> bool:
        self.collect()
        return self.schedule.drained(seq_index)

    def _copy_step(self, slots: tuple[Tensor, Tensor]) -> None:
        for each in slots:
            if each.is_cuda:
                # Allocated on the COMPUTE queue: the allocator must not reuse it before this copy has run.
                each.record_stream(torch.cuda.current_stream())
        self.ops.offload_step(*slots)


class Restores:
    """The copies from the host that have been launched on a queue, by sequence index: at most one each."""

    def __init__(self, queues: DeviceQueues, queue: Queue) -> None:
        self.queues, self._queue = queues, queue
        self._in_flight: dict[int, Event] = {}

    @contextmanager
    def beside_forwards(self, seq_index: int) -> Iterator[None]:
        """Launch a sequence's copy. If part of it fails to launch, what was launched is in flight all the same."""
        try:
            with behind_forwards(self.queues, self._queue):
                yield
        finally:
            self._in_flight[seq_index] = self.queues.record(self._queue)

    def wait_for(self, seq_index: int) -> None:
        """Run what is launched on the COMPUTE queue from now on behind a sequence's copy, if it has one."""
        if seq_index in self._in_flight:
            self.queues.wait(Queue.COMPUTE, self._in_flight[seq_index])

    def landed(self, seq_index: int) -> bool:
        """Return whether a sequence's copy has completed; also if it never had one."""
        if seq_index in self._in_flight and self.queues.completed(self._in_flight[seq_index]):
            del self._in_flight[seq_index]
        return seq_index not in self._in_flight
