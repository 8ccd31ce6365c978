"""A small engine over a `BackupSchedule`: sequences join, leave, are preempted and come back at random.

Every token of every sequence has a value of its own. What forwards may read is checked, and what the host
holds of a drained sequence. Pages and indices change hands as soon as they may, and what nobody owns is poisoned.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.worker.device_queues import Lane, Work
from hiscore.decoding.worker.offload_schedule import BackupSchedule, ring_pages
from hiscore.settings import BackupProtocol
from tests.support.stream_simulator import POISON, Cell, Memory

SLOTS = 3
# Staging stands in the device's memory from here on, the list of rows in the host's.
STAGING, ROWS = 1_000, 1_000
CELLS = 2_000


class Host(Memory, Protocol):
    """The memory, the lanes and the clock: a simulator's, or a device's."""

    during: str
    launch: Callable[[Lane, Work], None]
    after: Callable[[Lane], Callable[[], None]]
    pause: Callable[[], None]


@dataclass(frozen=True)
class Load:
    """What to run. Sequences are up to `longest` pages of `page` tokens long."""

    protocol: BackupProtocol
    page: int
    width: int
    seed: int
    steps: int = 40
    longest: int = 0

    @property
    def pages(self) -> int:
        return self.longest or ring_pages(self.width, self.page) + 3


@dataclass
class Sequence:
    number: int
    prompt: int
    total: int
    resident: bool
    length: int = 0
    seq_index: int = -1
    first_decoded: int = 0
    host: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)

    def value(self, position: int) -> int:
        return self.number * 10_000 + position


class Pool:
    """Pages that are given out again as soon as possible."""

    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]


class Run:
    """One run of a load; `faults` of the memory say what went wrong."""

    def __init__(self, load: Load, host: Host, schedule: BackupSchedule, ring: int | None = None) -> None:
        """ring: pages in the ring of a sequence, if not the right number."""
        self.load, self.memory, self.schedule = load, host, schedule
        self._random = random.Random(load.seed)
        self._ring = ring or ring_pages(schedule.width, load.page)
        # Room for all that run and for one sequence that is away; what is free is taken last in, first out.
        self._host = Pool((SLOTS + 1) * load.pages)
        self._device = Pool(SLOTS * load.pages)
        self._staging = Pool(2 * load.pages)
        self._slots = list(range(SLOTS))
        self._streams = 0
        self._running: list[Sequence] = []
        self._leaving: list[tuple[Sequence, bool]] = []
        self._away: list[Sequence] = []
        self._results: list[Callable[[], None]] = []
        self.written = 0
        self.most_lag = 0

    def run(self) -> None:
        while len(self._results) < self.load.steps:
            self._collect()
            self._join()
            self._leave(0.0, 0.0)
            if not self._running:
                self.memory.pause()
                continue
            self._step()
            self._leave(0.05, 0.05)
        self._leave(1.0, 0.0)
        while self._leaving:
            self._collect()
            self.memory.pause()
        for result in self._results:
            result()

    def _join(self) -> None:
        while self._slots and self._random.random() < 0.7:
            if self._away and self._random.random() < 0.5:
                self._start(self._away.pop(0))
            elif len(self._host.free) >= self.load.pages:
                total = self._random.randint(2, self.load.pages * self.load.page)
                prompt = self._random.randint(1, total - 1)
                self._streams += 1
                sequence = Sequence(self._streams, prompt, total, self._random.random() < 0.25)
                sequence.host = self._host.take(-(-total // self.load.page))
                self._start(sequence)
            else:
                return

    def _start(self, sequence: Sequence) -> None:
        """Prefill or restore to staging, then admit; the staging pages are free for the next at once."""
        back = sequence.length > 0
        sequence.seq_index = self._slots.pop()
        sequence.device = self._device.take(
            min(len(sequence.host), len(sequence.host) if sequence.resident else self._ring)
        )
        length = sequence.length = sequence.length or sequence.prompt
        sequence.first_decoded = length
        staging = self._staging.take(-(-length // self.load.page))
        staged = [self._cell("device", staging, p, STAGING) for p in range(length)]
        stored = [self._cell("host", sequence.host, p) for p in range(length)]
        if back:
            self.memory.during = "stage"
            self.schedule.restore(
                sequence.seq_index,
                length,
                _int32(staging),
                lambda: self.memory.copy([*zip(stored, staged, strict=True)]),
            )
        else:
            self._prefill(sequence, staging, staged, stored)
        newest = (sequence.length - 1) // self.load.page
        kept = [
            p
            for p in range(sequence.length)
            if sequence.resident or p // self.load.page > newest - self._ring
        ]

        def seed() -> None:
            self.memory.copy([(staged[p], self._device_cell(sequence, p)) for p in kept])

        self._staging.free += staging
        if sequence.length < length:
            self._leaving.append((sequence, False))
            return
        self.memory.during = "seed"
        self.schedule.forward(seed)
        self._running.append(sequence)

    def _prefill(
        self, sequence: Sequence, staging: list[int], staged: list[Cell], stored: list[Cell]
    ) -> None:
        """The prompt in parts, between steps of others. Some sequences leave before their last: then shorter."""
        page, left, copied = self.load.page, sequence.length, 0
        leaves = self._random.random() < 0.1
        while left:
            start = sequence.length - left
            tokens = self._random.randint(1, left)
            end, left = start + tokens, left - tokens
            values = [sequence.value(p) for p in range(start, end)]
            begun = staging[-(-start // page) : -(-end // page)]
            self.memory.during = "stage"
            self.schedule.stage(
                _int32(begun), lambda at=staged[start:end], values=values: self.memory.fill(at, values)
            )
            # What does not fill a page is left to the next copy.
            upto = self._random.randint(start + 1, end) if left else end
            if not left or self._random.random() < 0.8:
                pairs = [*zip(staged[copied:upto], stored[copied:upto], strict=True)]
                pages = staging[copied // page : -(-upto // page)]
                self.memory.during = "prompt"
                self.schedule.back_up_prompt(
                    sequence.seq_index,
                    copied,
                    upto,
                    _int32(pages),
                    lambda pairs=pairs: self.memory.copy(pairs),
                )
                self.written += upto - copied
                copied = upto
            if left and leaves:
                sequence.length = copied
                return
            self._leave(0.0, 0.0)
            if self._running and self._random.random() < 0.3:
                self._step()

    def _step(self) -> None:
        rows = [(sequence, sequence.length) for sequence in self._running]
        self._random.shuffle(rows)
        for sequence, _ in rows:
            sequence.length += 1
        # Under `blocking` the host keeps one list of rows, which each copy reads when it runs.
        listed = [x for sequence, p in rows for x in (sequence.seq_index, p)]
        cells: list[Cell] = [("host", ROWS + i) for i in range(len(listed))]

        def backup() -> None:
            if self.load.protocol == "blocking":
                self.memory.write_now(cells, listed)
                self.memory.check(cells, listed, "the copy's list of rows")
            self.memory.copy([(self._device_cell(s, p), self._cell("host", s.host, p)) for s, p in rows])

        self.memory.during = "step"
        seq_indices, positions = (_int32([s.seq_index for s, _ in rows]), _int32([p for _, p in rows]))
        self.schedule.step(seq_indices, positions, lambda: self._forward(rows), backup)
        self.written += len(rows)
        # A sequence's first steps may still wait for its prompt's copy.
        settled = [s.seq_index for s, p in rows if p >= s.first_decoded + 2]
        self.most_lag = max(self.most_lag, *self.schedule.lag()[settled].tolist(), 0)
        self._results.append(self.memory.after(Lane.FORWARD))
        if len(self._results) > 1:
            self._results[-2]()

    def _forward(self, rows: list[tuple[Sequence, int]]) -> None:
        """Writes the new tokens, then reads all that attention may: the buffer, and what can be swapped in."""
        self.memory.fill([self._device_cell(s, p) for s, p in rows], [s.value(p) for s, p in rows])
        for s, p in rows:
            oldest = 0 if s.resident else max(0, p // self.load.page - self._ring + 1) * self.load.page
            buffered, swappable = range(oldest, p + 1), range(oldest)
            landed = range(max(0, p + 1 - self.schedule.width))
            self.memory.check(
                [self._device_cell(s, x) for x in buffered], [s.value(x) for x in buffered], "the buffer"
            )
            for what, positions in (("a swap-in", swappable), ("all but the newest", landed)):
                self.memory.check(
                    [self._cell("host", s.host, x) for x in positions], [s.value(x) for x in positions], what
                )

    def _leave(self, end: float, preempt: float) -> None:
        for sequence in list(self._running):
            draw = self._random.random()
            done = sequence.length == sequence.total
            if done or draw < end + preempt:
                self._running.remove(sequence)
                self._leaving.append((sequence, not done and draw >= end))

    def _collect(self) -> None:
        """Sequences that have drained give up their index and their pages."""
        self.memory.during = "drained"
        for sequence, preempted in list(self._leaving):
            if not self.schedule.drained(sequence.seq_index):
                continue
            positions = range(sequence.length)
            stored = [self._cell("host", sequence.host, p) for p in positions]
            self.memory.check_now(stored, [sequence.value(p) for p in positions], "the host when drained")
            self.schedule.release(sequence.seq_index)
            self._leaving.remove((sequence, preempted))
            freed: list[Cell] = [("device", c) for page in sequence.device for c in self._of(page)]
            if preempted:
                self._away.append(sequence)
            else:
                freed += [("host", c) for page in sequence.host for c in self._of(page)]
                self._host.free += sequence.host
            self.memory.launch(Lane.FORWARD, lambda: self.memory.fill(freed, [POISON] * len(freed)))  # noqa: B023
            self._device.free += sequence.device
            self._slots.append(sequence.seq_index)

    def _of(self, page: int) -> range:
        return range(page * self.load.page, (page + 1) * self.load.page)

    def _cell(self, memory: str, pages: list[int], position: int, start: int = 0) -> Cell:
        page, offset = divmod(position, self.load.page)
        return memory, start + pages[page] * self.load.page + offset

    def _device_cell(self, sequence: Sequence, position: int) -> Cell:
        page, offset = divmod(position, self.load.page)
        return "device", sequence.device[page % len(sequence.device)] * self.load.page + offset


def _int32(values: list[int]) -> Int32:
    return np.array(values, np.int32)
