"""Copies of sequences from the host into staging, beside the forwards of others.

Three rules order them:

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

from hiscore.decoding.worker.device_queues import DeviceQueues, Event, Queue


class Restores:
    """The copies that have been launched on a queue, by the index of their sequence: at most one each."""

    def __init__(self, queues: DeviceQueues, queue: Queue) -> None:
        self.queues, self._queue = queues, queue
        self._in_flight: dict[int, Event] = {}

    @contextmanager
    def beside_forwards(self, seq_index: int) -> Iterator[None]:
        """Launch a sequence's copy. If part of it fails to launch, what was launched is in flight all the same."""
        computed = self._record(Queue.COMPUTE)
        self.queues.wait(self._queue, computed)
        self.queues.recycle(computed)
        try:
            with self.queues.use(self._queue):
                yield
        finally:
            self._in_flight[seq_index] = self._record(self._queue)

    def wait_for(self, seq_index: int) -> None:
        """Run what is launched on the COMPUTE queue from now on behind a sequence's copy, if it has one."""
        if (done := self._in_flight.get(seq_index)) is not None:
            self.queues.wait(Queue.COMPUTE, done)

    def landed(self, seq_index: int) -> bool:
        """Return whether a sequence's copy has completed; also if it never had one."""
        done = self._in_flight.get(seq_index)
        if done is not None and self.queues.completed(done):
            self.queues.recycle(self._in_flight.pop(seq_index))
            return True
        return done is None

    def _record(self, queue: Queue) -> Event:
        event = self.queues.event()
        self.queues.record(event, queue)
        return event
