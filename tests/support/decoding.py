"""Decode in one process over tiny random checkpoints: workers, sequences driven by hand, engines that serve
them.
"""

import json
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.block_manager import BlockManager, pages_needed
from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.kv_cache.sizing import MemoryBudget
from hiscore.decoding.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Output, Sequence
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.stats import EngineStats
from hiscore.decoding.stop_strings import Detokenizer, StopChecker
from hiscore.decoding.worker.build import build_worker
from hiscore.decoding.worker.device_queues import Event, ImmediateQueues, Queue
from hiscore.decoding.worker.interface import (
    DecodeBatch,
    ForwardResult,
    PendingForward,
    PrefillChunk,
    SamplingBatch,
)
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.device import upload
from hiscore.errors import RequestError
from hiscore.settings import CacheSettings
from tests.support import decode_cache, tiny_dsa, tiny_models
from tests.support.decode_cache import forget

CONTEXT = 512
# More than any pool of these sizes can take: the context and the number of sequences bound the pools.
BYTES = 2**31


def checkpoint(name: str, directory: Path, **changes: Any) -> Path:
    """A tiny checkpoint of a family of either sort, with a context short enough for small pools.

    changes: to its config.json, the weights stay as they are.
    """
    kind = tiny_dsa if name in tiny_dsa.FAMILIES else tiny_models
    path = kind.make(name, directory / name) / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "max_position_embeddings": CONTEXT, **changes}))
    return path.parent


def build(
    path: Path,
    selector: str,
    top_k: int = 16,
    buffer: int = 24,
    *,
    backup: str = "ring",
    ring: int = 4,
    sequences: int = 4,
    chunk: int = 24,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    poison: bool = True,
    dense_layers: int = 2,
) -> CacheWorker:
    """A worker whose memory holds nothing but NaN: to begin with, and wherever something was released."""
    settings = CacheSettings(
        selector=selector, sparse_top_k=top_k, device_buffer_size=buffer, backup=backup, backup_ring=ring,
        quest_dense_layers=dense_layers,
    )  # type: ignore[arg-type]  # fmt: skip
    memory = MemoryBudget(BYTES, BYTES, sequences)
    worker = build_worker(path, settings, memory, torch.device(device), dtype, chunk)
    if poison:
        with torch.inference_mode():
            shape = worker._cache.shape
            everywhere = (
                torch.arange(pages, device=device) for pages in (shape.host_pages, shape.device_pages)
            )
            decode_cache.poison(worker._cache, *everywhere)
            worker._model.staging.fill_(math.nan)
            if device != "cpu":
                torch.cuda.synchronize()  # the worker's streams wait for no other
        _poison_on_release(worker)
    return worker


def _poison_on_release(worker: CacheWorker) -> None:
    release = worker.release

    @torch.inference_mode()
    def release_and_poison(seq_index: int, host_pages: np.ndarray, device_pages: np.ndarray) -> None:
        release(seq_index, host_pages, device_pages)
        with worker._queues.use(Queue.COMPUTE):
            pages = (upload(each.astype(np.int64), worker._device) for each in (host_pages, device_pages))
            decode_cache.poison(worker._cache, *pages)

    worker.release = release_and_poison  # type: ignore[method-assign]


@torch.inference_mode()
def spoil(worker: CacheWorker, token: int) -> None:
    """From now on the token's embedding is not a number; for a checkpoint whose head is no view of it."""
    weights = worker._model._decoder.weights
    assert weights.embedding.data_ptr() != weights.head.data_ptr()
    weights.embedding[token] = math.nan


def prompt(length: int, seed: int = 0, vocabulary: int = tiny_dsa.VOCABULARY) -> np.ndarray:
    """int32 [length]"""
    return np.random.default_rng(seed).integers(3, vocabulary, length).astype(np.int32)


def greedy(rows: int) -> SamplingBatch:
    return SamplingBatch(
        np.zeros(rows, np.float32), np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows)
    )


class Driver:
    """Sequences of a worker that a test drives by hand, one call after another, each read at once."""

    def __init__(self, worker: CacheWorker) -> None:
        self.worker = worker
        self.blocks = BlockManager(worker.cache_config)
        self.sequences: dict[int, Sequence] = {}
        self.results: list[ForwardResult] = []
        self.sampling: Callable[[int], SamplingBatch] = greedy
        self._logits: list[Tensor] = []

        def keep_and_sample(logits: Tensor, *others: Any) -> Tensor:
            self._logits.append(logits.clone())
            return CacheWorker._sample(worker, logits, *others)

        worker._sample = keep_and_sample  # type: ignore[method-assign]

    def admit(self, tokens: np.ndarray, max_tokens: int, sparse: bool = True) -> tuple[int, Tensor]:
        """Prefill a prompt and let it decode: its index, and the logits [vocabulary] after its last token."""
        worker, cache_config = self.worker, self.worker.cache_config
        options = SamplingParams(max_tokens=max_tokens, sparse=sparse)
        sequence = Sequence(DecodeCall(tokens, options, math.inf), None, StopChecker(options, frozenset()))
        self._end_staging()
        self.blocks.allocate(sequence, pages_needed(sequence.call, len(tokens), cache_config))
        for start in range(0, len(tokens), cache_config.prefill_token_budget):
            part = tokens[start : start + cache_config.prefill_token_budget]
            last = start + len(part) == len(tokens)
            chunk = PrefillChunk(
                sequence.seq_index, part, start, sequence.staging_pages, sequence.host_pages, last, not sparse
            )
            self._read(worker.prefill([chunk], greedy(int(last))))
            logits = self._logits.pop()
        sequence.prefilled, sequence.sampled = len(tokens), 1
        worker.admit(sequence.admission())
        self.sequences[sequence.seq_index] = sequence
        return sequence.seq_index, logits[0]

    def step(self, seq_indices: list[int], fed: list[int] | None = None, cold: bool = False) -> Tensor:
        """One step of these sequences: logits [R, vocabulary]. fed: instead of what was sampled.

        cold: without anything on the device but the ring.
        """
        return self.read(self.launch(seq_indices, fed, cold))

    @torch.inference_mode()
    def launch(
        self, seq_indices: list[int], fed: list[int] | None = None, cold: bool = False
    ) -> PendingForward:
        """Launch a step without waiting for anything, unless something is to be fed or forgotten."""
        on_cuda = self.worker._device.type == "cuda"
        if on_cuda and (cold or fed is not None):
            torch.cuda.synchronize()
        for seq_index in seq_indices if cold else ():
            self._forget(seq_index)
        if fed is not None:
            at = torch.tensor(list(seq_indices), device=self.worker._device)
            self.worker._runner.fed[at] = torch.tensor(list(fed), dtype=torch.int32, device=at.device)
        if on_cuda and (cold or fed is not None):
            torch.cuda.synchronize()
        self._end_staging()
        positions = np.array([self.sequences[seq_index].length for seq_index in seq_indices], np.int32)
        launched = self.worker.step(
            DecodeBatch(np.array(seq_indices, np.int32), positions, self.sampling(len(seq_indices)))
        )
        for seq_index in seq_indices:
            self.sequences[seq_index].sampled += 1
        return launched

    def read(self, launched: PendingForward) -> Tensor:
        """Wait for a step: the logits of the oldest that was not read, [R, vocabulary]."""
        self._read(launched)
        return self._logits.pop(0)

    def leave(self, seq_index: int, preempt: bool = False) -> Sequence:
        """End a sequence, or take all but its pages on the host from it."""
        self.drain(seq_index)
        sequence = self.sequences.pop(seq_index)
        sequence.last_token, sequence.received = int(self.worker._runner.fed[seq_index]), sequence.sampled
        released = self.blocks.free(sequence, keep_host=preempt)
        self.worker.release(released.seq_index, released.host, released.device)
        return sequence

    def resume(self, sequence: Sequence) -> int:
        """Bring a preempted sequence back, by way of staging; its index, perhaps another one."""
        needs = pages_needed(sequence.call, sequence.length, self.worker.cache_config)
        host = sequence.host_pages
        self.blocks.allocate(sequence, needs)
        self.blocks.host.free(sequence.host_pages)
        sequence.host_pages = host
        self.worker.restore(sequence.seq_index, sequence.length, sequence.host_pages, sequence.staging_pages)
        self.worker.admit(sequence.admission())
        self.sequences[sequence.seq_index] = sequence
        return sequence.seq_index

    def drain(self, seq_index: int) -> None:
        """Wait until all that a sequence has written is on the host."""
        for _ in range(10**6):
            if self.worker.drained(seq_index):
                return
        raise AssertionError(f"sequence {seq_index} does not drain")

    def _end_staging(self) -> None:
        for sequence in self.sequences.values():
            self.worker.drained(sequence.seq_index)  # which looks at what has landed
            if (
                len(sequence.staging_pages)
                and self.worker._schedule._landed[sequence.seq_index] >= sequence.prefilled - 1
            ):
                self.blocks.free_staging(sequence)

    def _forget(self, seq_index: int) -> None:
        """Nothing but the ring is resident, and nothing of what was is left."""
        cache, shape = self.worker._cache, self.worker._cache.shape
        forget(cache, seq_index)
        if not cache.fully_resident[seq_index]:
            places = cache.device_block_table[seq_index, : shape.lru_pages].long()
            cache.buffer.unflatten(1, (-1, shape.page_size))[:, places] = math.nan

    def _read(self, launched: PendingForward) -> None:
        self.results.append(launched.result())

    @property
    def misses(self) -> int:
        return sum(result.misses for result in self.results)


def host_rows(worker: CacheWorker, sequence: Sequence, positions: Tensor) -> Tensor:
    """What the host holds of a sequence: [L, n, C, H, D] for int64 [n] positions."""
    page = worker.cache_config.page_size
    pages = torch.from_numpy(sequence.host_pages.astype(np.int64))[positions // page]
    return worker._cache.host_kv[:, pages, :, :, positions % page].permute(1, 0, 3, 2, 4)


def device_rows(worker: CacheWorker, sequence: Sequence, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """What the device has of a sequence in a layer and head: int64 [n] positions, and their rows [n, C, D]."""
    cache, shape, page = worker._cache, worker._cache.shape, worker._cache.shape.page_size
    host = torch.from_numpy(sequence.host_pages.astype(np.int64))
    pages = torch.arange(-(-sequence.length // page))
    if layer in cache.dense:
        places = host[pages]
    else:
        table = cache.device_block_table[sequence.seq_index].cpu().long()
        in_ring = pages > (sequence.length - 1) // page - shape.ring_pages
        under_lru = cache.device_page_of[cache.sparse[layer], :, head].cpu().long()[host[pages]]
        places = torch.where(in_ring, table[shape.lru_pages + pages % shape.ring_pages], under_lru)
        if bool(cache.fully_resident[sequence.seq_index]):
            places = table[pages]
    pages, places = pages[places >= 0], places[places >= 0]
    positions = (pages[:, None] * page + torch.arange(page)).flatten()
    slots = (places[:, None] * page + torch.arange(page)).flatten()[positions < sequence.length]
    return positions[positions < sequence.length], cache.tokens(layer)[:, :, head].cpu()[slots]


class LateCopies(ImmediateQueues):
    """The CPU's queues with copies to the host that run as late as they may: when a forward waits for them.

    patience: so often an event may be asked for before its copy runs, so that a sequence can be drained in the
    end. deaf: a control, forwards wait for nothing.
    """

    def __init__(self, patience: int, deaf: bool = False) -> None:
        self.in_flight: set[int] = set()
        self._patience, self._deaf = patience, deaf
        self._numbers, self._asked = count(), 0
        self._queue = Queue.COMPUTE
        self._offload: deque[Callable[[], None] | int] = deque()

    def install(self, worker: CacheWorker) -> CacheWorker:
        """Let the worker launch on these queues."""
        worker._queues, worker._ops = self, _LateOps(worker._ops, self)
        return worker

    def copy(self, launch: Callable[[], None]) -> None:
        """Launch a copy on the queue in use."""
        if self._queue is Queue.OFFLOAD:
            self._offload.append(launch)
        else:
            launch()

    @contextmanager
    def use(self, queue: Queue) -> Iterator[None]:
        self._queue = queue
        yield
        self._queue = Queue.COMPUTE

    def event(self) -> Event:
        return Event(next(self._numbers))

    def record(self, event: Event, queue: Queue) -> None:
        if queue is Queue.OFFLOAD:
            self._offload.append(event)
            self.in_flight.add(event)

    def wait(self, queue: Queue, event: Event) -> None:
        if queue is Queue.COMPUTE and not self._deaf:
            self._run_to(event)

    def completed(self, event: Event) -> bool:
        self._asked += event in self.in_flight
        if self._asked >= self._patience:
            self._asked = 0
            self._run_to(event)
        return event not in self.in_flight

    def block(self, event: Event) -> None:
        self._run_to(event)

    @torch.inference_mode()
    def _run_to(self, event: int) -> None:
        while event in self.in_flight:
            entry = self._offload.popleft()
            if isinstance(entry, int):
                self.in_flight.discard(entry)
            else:
                entry()


class _LateOps:
    """A worker's cache operations, with copies to the host by way of `LateCopies`."""

    def __init__(self, ops: CacheOps, late: LateCopies) -> None:
        self._ops, self._late = ops, late

    def offload_step(self, *slots: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_step(*slots))

    def offload_prompt(self, *prompt: Tensor) -> None:
        self._late.copy(lambda: self._ops.offload_prompt(*prompt))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


@dataclass(eq=False)
class Outcome:
    """What came of a call so far; end: its finish reason or its error."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: str | RequestError | None = None


class Client:
    """Submits calls to an engine and keeps what comes back; `hook` is called on the engine's thread after each."""

    def __init__(self) -> None:
        self.engine: DecodeEngine
        self.failures: list[Exception] = []
        self.hook: Callable[[Outcome], None] = lambda outcome: None
        self._changed = threading.Condition()

    def submit(
        self, tokens: np.ndarray, max_tokens: int, deadline: float = math.inf, **options: Any
    ) -> Outcome:
        outcome = Outcome()
        options = {"ignore_eos": True, **options}
        call = DecodeCall(tokens, SamplingParams(max_tokens=max_tokens, **options), deadline)
        self.engine.submit(call, outcome)
        return outcome

    def emit(self, outcome: Outcome, output: Output | RequestError) -> None:
        with self._changed:
            assert outcome.end is None, "an answer after the last"
            if isinstance(output, RequestError):
                outcome.end = output
            else:
                outcome.tokens += output.token_ids
                outcome.text += output.text
                outcome.end = output.finish_reason or None
            self._changed.notify_all()
        self.hook(outcome)

    def wait(self, outcomes: list[Outcome], timeout: float = 120) -> None:
        with self._changed:
            ended = self._changed.wait_for(lambda: all(each.end is not None for each in outcomes), timeout)
        assert ended, "a sequence does not end"

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats()


@contextmanager
def serving(
    worker: CacheWorker,
    quantum: int = 0,
    eos: frozenset[int] = frozenset(),
    detokenizer: Callable[[], Detokenizer] | None = None,
) -> Iterator[Client]:
    """An engine over a worker; at its end everything that was taken must have come back."""
    client = Client()
    client.engine = DecodeEngine(
        worker, detokenizer, eos, 10_000, client.emit, on_failure=client.failures.append, quantum=quantum
    )
    try:
        yield client
    finally:
        client.engine.close()
    pools, stats = client.engine._scheduler.blocks, client.stats
    assert [pool.num_used for pool in (pools.seq_indices, pools.host, pools.device, pools.staging)] == [
        0,
        0,
        0,
        0,
    ]
    assert client.engine._scheduler.idle
    assert (stats.running, stats.waiting, stats.prefilling, stats.preempted) == (0, 0, 0, 0)
    assert (stats.host_rows, stats.device_rows, stats.backup_lag) == (0, 0, 0)
    assert (worker._schedule.lag() == 0).all()
