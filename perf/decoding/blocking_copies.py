"""The baseline of the published work: the host waits for a step's forward, then launches its copy to the host."""

from dataclasses import dataclass

from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.host_copies import HostCopies
from hiscore.decoding.worker.offload_schedule import Event


@dataclass(frozen=True)
class Held:
    """The copy of a step, to be launched when the step's forward has completed."""

    forward: Event
    slots: tuple[Tensor, Tensor]
    seq_indices: Int32
    positions: Int32


class BlockingCopies(HostCopies):
    """Copies of a worker whose ring holds one token, in place of its own."""

    def __init__(self, own: HostCopies) -> None:
        super().__init__(own.queues, own.schedule, own.ops)
        self._held: Held | None = None

    def before_step(self, seq_indices: Int32, positions: Int32) -> None:
        while self._held and not self.queues.completed(self._held.forward):
            pass
        self._launch_held()
        super().before_step(seq_indices, positions)

    def offload_step(self, slots: tuple[Tensor, Tensor], seq_indices: Int32, positions: Int32) -> None:
        self.schedule.step_launched(seq_indices, positions)
        forward = self.queues.record(Queue.COMPUTE)
        # The caller's arrays may be those of the next step already when the copy is launched.
        self._held = Held(forward, slots, seq_indices.copy(), positions.copy())

    def drained(self, seq_index: int) -> bool:
        if self._held and self.queues.completed(self._held.forward):
            self._launch_held()
        held = self._held is not None and seq_index in self._held.seq_indices
        return not held and super().drained(seq_index)

    def _launch_held(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        with self.queues.use(Queue.COMPUTE):
            self._copy_step(held.slots)
        self.schedule.step_copied(self.queues.record(Queue.COMPUTE), held.seq_indices, held.positions)
