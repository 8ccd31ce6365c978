"""The memory of an `offload_load` in torch: on the CPU, or pinned and on a CUDA device, with delays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hiscore.decoding.worker.device_queues import Queue
from tests.support.offload_load import CELLS
from tests.support.queue_simulator import POISON, Cell

CHECKS = 4_000


class TensorMemory:
    """A mixin before a `DeviceQueues` class. Cells are int64; nothing waits for the device but what says so."""

    def __init__(self, device: torch.device, cycles: dict[Queue, int], *queues) -> None:
        """cycles: how long each launch on a queue is held up, in the device's clock."""
        super().__init__(*queues)
        self.cuda = device.type == "cuda"
        self._cycles = cycles
        host = torch.full((CELLS,), POISON, pin_memory=self.cuda)
        self._memory = {"host": host, "device": torch.full((CELLS,), POISON, device=device)}
        self._poison = torch.full((1,), POISON, device=device)
        # Made before the run: an allocation may wait for the device.
        self._seen = torch.empty((CHECKS, CELLS), dtype=torch.int64, device=device)
        self._expected: list[tuple[str, list[int], list[int]]] = []
        self._wrong_now: list[str] = []

    def _at(self, cell: Cell) -> Tensor:
        memory, index = cell
        return self._memory[memory][index : index + 1]

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        with super().use(queue):
            if self._cycles[queue]:
                torch.cuda._sleep(self._cycles[queue])
            self._queue = queue
            yield

    def after(self, queue: Queue) -> Callable[[], None]:
        if not self.cuda:
            return lambda: None
        event = torch.cuda.Event()
        event.record(self._streams[queue])
        return event.synchronize

    def pause(self) -> None:
        """The host polls again."""

    def fill(self, cells: Sequence[Cell], values: Sequence[int]) -> None:
        for cell, value in zip(cells, values, strict=True):
            if cell[0] == "host":
                assert value == POISON
                self._at(cell).copy_(self._poison, non_blocking=True)
            else:
                self._at(cell).fill_(value)

    def copy(self, moves: Sequence[tuple[Cell, Cell]]) -> None:
        for source, target in moves:
            self._at(target).copy_(self._at(source), non_blocking=True)

    def check(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None:
        if cells:
            self._seen[len(self._expected)].copy_(self._memory[cells[0][0]], non_blocking=True)
            self._expected.append((what, [index for _, index in cells], list(values)))

    def write_now(self, cells: Sequence[Cell], values: Sequence[int]) -> None:
        for (memory, index), value in zip(cells, values, strict=True):
            self._memory[memory][index] = value

    def check_now(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None:
        found = [int(self._at(cell)) for cell in cells]
        if found != list(values):
            self._wrong_now.append(f"{what}: {found}, not {list(values)}")

    @property
    def faults(self) -> list[str]:
        """What was wrong in all checks so far; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        seen = self._seen[: len(self._expected)].cpu()
        wrong = [
            f"{what}: {row[cells].tolist()}, not {values}"
            for (what, cells, values), row in zip(self._expected, seen, strict=True)
            if row[cells].tolist() != values
        ]
        return wrong + self._wrong_now
