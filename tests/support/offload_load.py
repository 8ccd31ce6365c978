"""A small engine over a worker: sequences join, leave, are preempted and come back at random.

The worker is the real one, over a real `OffloadSchedule`; its model, runner and cache operations only move numbers
between cells of a memory. Every token of every sequence has a unique value. What forwards may read is checked,
and what the host holds of a drained sequence. Pages and indices change hands as soon as they may, and what nobody
owns is poisoned.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import NO_PAGES, DecodeBatch, PrefillChunk
from hiscore.decoding.kv_cache.buffer_pages import ring_pages
from hiscore.decoding.models import base as models_base
from hiscore.decoding.models.base import staging_slots
from hiscore.decoding.worker import worker as worker_module
from hiscore.decoding.worker.device_queues import DeviceQueues, Queue
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import COUNTERS, Attends, StepOutputs, new_input_ids
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.queue_simulator import POISON, Cell, Memory

SEQUENCES = 3
# Staging is in the device's memory from here on.
STAGING = 1_000


class Device(DeviceQueues, Memory, Protocol):
    during: str
    after: Callable[[Queue], Callable[[], None]]
    pause: Callable[[], None]


@dataclass(frozen=True)
class Load:
    """What to run. Sequences are up to `longest` pages of `page` tokens long."""

    page: int
    width: int
    seed: int
    steps: int = 40
    longest: int = 0

    @property
    def pages(self) -> int:
        return self.longest or ring_pages(self.width, self.page) + 3

    @property
    def staging_pages(self) -> int:
        """Room for two of the longest prompts. A page of staging is as large as one of the host here."""
        return 2 * self.pages


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
    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]


class FakeModel:
    """`DecodeModel`: a prefill writes the values of its tokens to staging."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        counters = [torch.zeros(size, dtype=torch.int64) for size in (1, 1)]
        self.cache: Any = SimpleNamespace(
            hits=counters[0],
            misses=counters[1],
            mass=torch.zeros(2, dtype=torch.float64),
            sparse={},
            shape=SimpleNamespace(windowed=frozenset()),
        )
        self.staging = torch.zeros(0)

    def prefill(self, chunks: list[PrefillChunk]) -> Tensor:
        memory = self._run.memory
        for chunk in chunks:
            sequence = self._run.at[chunk.seq_index]
            staged = self._run.staged(chunk.staging_pages, chunk.end)[chunk.start :]
            memory.fill(staged, [sequence.value(p) for p in range(chunk.start, chunk.end)])
        memory.during = "prompt"
        return torch.zeros(sum(chunk.is_last for chunk in chunks), 2)


class FakeRunner:
    """`StepRunner`: a step writes the values of its tokens, then reads all that attention may read."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.ops: Any = FakeOps(run)
        self.input_ids = new_input_ids(SEQUENCES, torch.device("cpu"))
        self.counts = None

    def forward(self, seq_indices: Int32, positions: Int32, attends: Attends, sampling: Any) -> StepOutputs:
        rows = [(self._run.at[i], p) for i, p in zip(seq_indices.tolist(), positions.tolist(), strict=True)]
        self._run.forward(rows)
        # The copy knows its rows by these.
        slots = torch.from_numpy(seq_indices), torch.from_numpy(positions)
        return StepOutputs(torch.empty(0), *slots, torch.zeros(COUNTERS, dtype=torch.int64))


class FakeOps:
    """`CacheOps`, of which only the copies between staging, device and host are called."""

    def __init__(self, run: "Run") -> None:
        self._run = run

    def offload_step(self, seq_indices: Tensor, positions: Tensor) -> None:
        run, memory = self._run, self._run.memory
        rows = [(run.at[i], p) for i, p in zip(seq_indices.tolist(), positions.tolist(), strict=True)]
        memory.copy([(run.device_cell(s, p), run.cell("host", s.host, p)) for s, p in rows])

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        self._run.memory.copy([*zip(*self._cells(slots, host_pages), strict=True)])

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        staged, stored = self._cells(slots, host_pages)
        self._run.memory.copy([*zip(stored, staged, strict=True)])

    def _cells(self, slots: Tensor, host_pages: Tensor) -> tuple[list[Cell], list[Cell]]:
        pages = host_pages.tolist()
        stored = [self._run.cell("host", pages, p) for p in range(len(slots))]
        return [("device", STAGING + slot) for slot in slots.tolist()], stored


class Run:
    """One run of a load; `faults` of the memory say what went wrong."""

    def __init__(self, load: Load, device: Device, ring: int | None = None) -> None:
        """ring: pages in the ring of a sequence, if not the right number."""
        self.load, self.memory = load, device
        self.schedule = OffloadSchedule(load.width, SEQUENCES, load.staging_pages)
        sizes = dict.fromkeys(("lru_pages", "ring_pages", "host_pages", "device_pages"), 0)
        config = CacheConfig(
            page_size=load.page, **sizes, staging_pages=load.staging_pages, max_sequences=SEQUENCES,
            prefill_token_budget=0, context_length=0,
        )  # fmt: skip
        self.worker = CacheWorker(FakeModel(self), FakeRunner(self), device, self.schedule, config)
        self.at: dict[int, Sequence] = {}  # by index
        self._random = random.Random(load.seed)
        self._ring = ring or ring_pages(self.schedule.width, load.page)
        # Room for all that run and for one sequence that is away; what is free is taken last in, first out.
        self._host = Pool((SEQUENCES + 1) * load.pages)
        self._device = Pool(SEQUENCES * load.pages)
        self._staging = Pool(load.staging_pages)
        self._indices = list(range(SEQUENCES))
        self._started = 0
        self._running: list[Sequence] = []
        self._leaving: list[tuple[Sequence, bool]] = []
        self._away: list[Sequence] = []
        self._results: list[Callable[[], None]] = []
        self.written = 0
        self.most_lag = 0

    def run(self) -> None:
        # Larger pages would be waited for even if the tokens in them are others.
        with (
            mock.patch.object(worker_module, "STAGING_PAGE_SIZE", self.load.page),
            mock.patch.object(models_base, "STAGING_PAGE_SIZE", self.load.page),
        ):
            self._run()

    def _run(self) -> None:
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
        while self._indices and self._random.random() < 0.7:
            if self._away and self._random.random() < 0.5:
                self._start(self._away.pop(0))
            elif len(self._host.free) >= self.load.pages:
                total = self._random.randint(2, self.load.pages * self.load.page)
                prompt = self._random.randint(1, total - 1)
                self._started += 1
                sequence = Sequence(self._started, prompt, total, self._random.random() < 0.25)
                sequence.host = self._host.take(-(-total // self.load.page))
                self._start(sequence)
            else:
                return

    def _start(self, sequence: Sequence) -> None:
        """Prefill or restore to staging, then admit; the staging pages are free for the next at once."""
        back = sequence.length > 0
        sequence.seq_index = self._indices.pop()
        sequence.device = self._device.take(
            min(len(sequence.host), len(sequence.host) if sequence.resident else self._ring)
        )
        self.at[sequence.seq_index] = sequence
        length = sequence.length = sequence.length or sequence.prompt
        sequence.first_decoded = length
        staging = self._staging.take(-(-length // self.load.page))
        host = _int32(sequence.host)
        self.memory.during = "stage"
        if back:
            self.worker.restore(sequence.seq_index, length, host, _int32(staging))
        else:
            self._prefill(sequence, _int32(staging), host)
        self._staging.free += staging
        if sequence.length < length:
            self._leaving.append((sequence, False))
            return
        newest = (sequence.length - 1) // self.load.page
        staged = self.staged(_int32(staging), sequence.length)
        kept = [
            p
            for p in range(sequence.length)
            if sequence.resident or p // self.load.page > newest - self._ring
        ]
        self.memory.during = "seed"
        self.worker._restores.wait_for(sequence.seq_index)  # as `CacheWorker.admit`
        with self.memory.use(Queue.COMPUTE):
            self.memory.copy([(staged[p], self.device_cell(sequence, p)) for p in kept])
        self._running.append(sequence)

    def _prefill(self, sequence: Sequence, staging: Int32, host: Int32) -> None:
        """The prompt in parts, between steps of others. Some sequences leave before their last: then shorter."""
        page, start, total = self.load.page, 0, sequence.length
        leaves = self._random.random() < 0.1
        while start < total:
            end = start + self._random.randint(1, total - start)
            last = end == total
            tokens = np.zeros(end - start, np.int32)
            self.memory.during = "stage"
            self.worker.prefill(
                [PrefillChunk(sequence.seq_index, tokens, start, staging, host, last)], _greedy(int(last))
            )
            start, copied = end, end if last else end // page * page
            if not last and leaves:
                sequence.length = copied
                break
            self._leave(0.0, 0.0)
            if self._running and self._random.random() < 0.3:
                self._step()
        self.written += copied

    def _step(self) -> None:
        rows = [(sequence, sequence.length) for sequence in self._running]
        self._random.shuffle(rows)
        for sequence, _ in rows:
            sequence.length += 1
        seq_indices, positions = _int32([s.seq_index for s, _ in rows]), _int32([p for _, p in rows])
        self.memory.during = "step"
        self.worker.step(DecodeBatch(seq_indices, positions, _greedy(len(rows))))
        self.written += len(rows)
        # A sequence's first steps may still wait for its prompt's copy.
        settled = [s.seq_index for s, p in rows if p >= s.first_decoded + 2]
        self.most_lag = max(self.most_lag, *self.schedule.lag()[settled].tolist(), 0)
        self._results.append(self.memory.after(Queue.COMPUTE))
        if len(self._results) > 1:
            self._results[-2]()

    def forward(self, rows: list[tuple[Sequence, int]]) -> None:
        """Writes the new tokens, then reads all that attention may: the buffer, and what can be swapped in."""
        self.memory.fill([self.device_cell(s, p) for s, p in rows], [s.value(p) for s, p in rows])
        for s, p in rows:
            oldest = 0 if s.resident else max(0, p // self.load.page - self._ring + 1) * self.load.page
            buffered, swappable = range(oldest, p + 1), range(oldest)
            landed = range(max(0, p + 1 - self.schedule.width))
            self.memory.check(
                [self.device_cell(s, x) for x in buffered], [s.value(x) for x in buffered], "the buffer"
            )
            for what, positions in (("a swap-in", swappable), ("all but the newest", landed)):
                self.memory.check(
                    [self.cell("host", s.host, x) for x in positions], [s.value(x) for x in positions], what
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
            if not self.worker.drained(sequence.seq_index):
                continue
            positions = range(sequence.length)
            stored = [self.cell("host", sequence.host, p) for p in positions]
            self.memory.check_now(stored, [sequence.value(p) for p in positions], "the host when drained")
            self.worker.release(sequence.seq_index, NO_PAGES, NO_PAGES)
            self._leaving.remove((sequence, preempted))
            freed: list[Cell] = [("device", c) for page in sequence.device for c in self._of(page)]
            if preempted:
                self._away.append(sequence)
            else:
                freed += [("host", c) for page in sequence.host for c in self._of(page)]
                self._host.free += sequence.host
            with self.memory.use(Queue.COMPUTE):
                self.memory.fill(freed, [POISON] * len(freed))
            self._device.free += sequence.device
            self._indices.append(sequence.seq_index)

    def _of(self, page: int) -> range:
        return range(page * self.load.page, (page + 1) * self.load.page)

    def staged(self, staging_pages: Int32, length: int) -> list[Cell]:
        """Where a prompt of this length is in staging."""
        return [("device", STAGING + slot) for slot in staging_slots(staging_pages, length).tolist()]

    def cell(self, memory: str, pages: list[int], position: int) -> Cell:
        page, offset = divmod(position, self.load.page)
        return memory, pages[page] * self.load.page + offset

    def device_cell(self, sequence: Sequence, position: int) -> Cell:
        page, offset = divmod(position, self.load.page)
        return "device", sequence.device[page % len(sequence.device)] * self.load.page + offset


def _int32(values: list[int]) -> Int32:
    return np.array(values, np.int32)


def _greedy(rows: int) -> SamplingBatch:
    zeros = np.zeros(rows, np.float32)
    return SamplingBatch(zeros, zeros.astype(np.int32), zeros + 1, zeros.astype(np.float64))
