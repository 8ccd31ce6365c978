"""Queues, events and memory with a simulated clock, to show what can go wrong with an order of launches.

Each queue runs in order; how long an operation takes is drawn by the test. An operation reads its sources
when it starts and again when it ends, and its targets hold garbage in between: any overlap that must not happen
shows in the values.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from hiscore.decoding.worker.device_queues import Event, Queue

Work = Callable[[], None]
Cell = tuple[str, int]
"""Where a token is: a memory ("device" or "host") and an index in it."""

POISON = -1
TORN = -2  # between the start and the end of a write, or read while it changed


class Memory(Protocol):
    """What a load does on the queue in use; each call is one operation."""

    def fill(self, cells: Sequence[Cell], values: Sequence[int]) -> None: ...

    def copy(self, moves: Sequence[tuple[Cell, Cell]]) -> None: ...

    def check(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None:
        """The cells must hold these values when this runs; `what` is noted if they do not."""
        ...

    def check_now(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None: ...


@dataclass
class Operation:
    queue: Queue
    duration: float
    start: Work
    finish: Work
    started: float = -1.0


@dataclass
class Record:
    happened: bool = False


@dataclass
class Wait:
    """A queue's wait for one recording of an event, if it had one."""

    record: Record | None


Item = Operation | Record | Wait


@dataclass
class Simulator:
    """`DeviceQueues` and `Memory`. durations: how long the next operation of a queue takes."""

    durations: Callable[[Queue], float]
    now: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queues: dict[Queue, deque[Item]] = {queue: deque() for queue in Queue}
        self._running: dict[Queue, Operation] = {}
        self._events: list[Record | None] = []
        self._free: list[Event] = []
        self._cells: dict[Cell, int] = {}
        self._queue = Queue.COMPUTE

    @property
    def events(self) -> int:
        return len(self._events)

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        self._queue = queue
        yield
        self._settle()

    def event(self) -> Event:
        if self._free:
            return self._free.pop()
        self._events.append(None)
        return Event(len(self._events) - 1)

    def recycle(self, event: Event) -> None:
        assert event not in self._free
        self._free.append(event)

    def record(self, event: Event, queue: Queue) -> None:
        record = self._events[event] = Record()
        self._queues[queue].append(record)
        self._settle()

    def wait(self, queue: Queue, event: Event) -> None:
        self._queues[queue].append(Wait(self._events[event]))
        self._settle()

    def completed(self, event: Event) -> bool:
        record = self._events[event]
        return record is None or record.happened

    def after(self, queue: Queue) -> Callable[[], None]:
        """What makes the host wait for all that the queue holds now; out of a mutation's reach."""
        record = Record()
        self._queues[queue].append(record)
        self._settle()

        def wait() -> None:
            while not record.happened:
                self._next()

        return wait

    def pause(self) -> None:
        if self._running:
            self._next()

    def _next(self) -> None:
        assert self._running, "the host waits for what can never happen"
        operation = min(self._running.values(), key=lambda x: x.started + x.duration)
        self.now = operation.started + operation.duration
        operation.finish()
        del self._running[operation.queue]
        self._settle()

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for queue, items in self._queues.items():
                while items and queue not in self._running:
                    item = items[0]
                    if isinstance(item, Wait) and item.record and not item.record.happened:
                        break
                    items.popleft()
                    moved = True
                    if isinstance(item, Record):
                        item.happened = True
                    elif isinstance(item, Operation):
                        item.started = self.now
                        item.start()
                        self._running[queue] = item

    def fill(self, cells: Sequence[Cell], values: Sequence[int]) -> None:
        self._enqueue(lambda: self._write(cells, TORN), lambda: self.write_now(cells, values))

    def copy(self, moves: Sequence[tuple[Cell, Cell]]) -> None:
        sources, targets = [x for x, _ in moves], [x for _, x in moves]
        seen: list[int] = []

        def start() -> None:
            seen.extend(self._read(sources))
            self._write(targets, TORN)

        def finish() -> None:
            again = self._read(sources)
            self.write_now(targets, [a if a == b else TORN for a, b in zip(seen, again, strict=True)])

        self._enqueue(start, finish)

    def check(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None:
        def look() -> None:
            self.check_now(cells, values, what)

        self._enqueue(look, look)

    def write_now(self, cells: Sequence[Cell], values: Sequence[int]) -> None:
        self._cells.update(zip(cells, values, strict=True))

    def check_now(self, cells: Sequence[Cell], values: Sequence[int], what: str) -> None:
        for cell, found, value in zip(cells, self._read(cells), values, strict=True):
            if found != value:
                self.faults.append(f"{what}: {cell} holds {found}, not {value}")

    def _read(self, cells: Sequence[Cell]) -> list[int]:
        return [self._cells.get(cell, POISON) for cell in cells]

    def _write(self, cells: Sequence[Cell], value: int) -> None:
        self._cells.update(dict.fromkeys(cells, value))

    def _enqueue(self, start: Work, finish: Work) -> None:
        self._queues[self._queue].append(Operation(self._queue, self.durations(self._queue), start, finish))
