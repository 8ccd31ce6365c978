"""The device side of decoding: pools, prefill, steps and backups, for every family on CPU and CUDA devices.

The schedule of the backup decides what waits for what; all that is launched here goes through it. On a CUDA device
no call but `PendingForward.result` waits, and a result waits for one event: `copy_done`.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.models.base import DecodeModel, staging_slots
from hiscore.decoding.sparse.residency import admit
from hiscore.decoding.worker.interface import (
    STAGING_PAGE_SIZE,
    Admission,
    CacheConfig,
    DecodeBatch,
    ForwardResult,
    PendingForward,
    PrefillChunk,
    SamplingBatch,
)
from hiscore.decoding.worker.offload_schedule import BackupSchedule
from hiscore.decoding.worker.sampler import greedy, sample
from hiscore.decoding.worker.step_runner import COUNTERS, StepRunner, feed
from hiscore.device import upload


class CacheWorker:
    """`Worker` over a model and its cache."""

    def __init__(
        self,
        model: DecodeModel,
        runner: StepRunner,
        schedule: BackupSchedule,
        cache_config: CacheConfig,
    ) -> None:
        self.cache_config = cache_config
        self._model, self._cache, self._runner = model, model.cache, runner
        self._steps = runner.steps
        self._schedule = schedule
        self._device = model.staging.device
        self._full = np.zeros(cache_config.max_sequences, bool)
        self._seen = np.zeros(4)  # counters of the cache, as last read
        self._backed_up = 0

    @torch.inference_mode()
    def prefill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> PendingForward:
        # Where the chunk before ends, in the middle of a page, its copy may read on.
        begun = [_staging_pages(chunk.staging_pages, chunk.start, chunk.end, begun=True) for chunk in chunks]
        seq_indices = np.array([chunk.seq_index for chunk in chunks if chunk.is_last], np.int32)
        launched = OnItsWay(self, len(seq_indices))
        self._schedule.stage(
            np.concatenate(begun),
            lambda: launched.run(lambda: self._sample(self._model.prefill(chunks), seq_indices, sampling)),
        )
        for chunk in chunks:
            if len(chunk.host_pages):
                end = chunk.end if chunk.is_last else self._page_edge(chunk.end)
                self.back_up_prompt(chunk, self._page_edge(chunk.start), end)
        return launched

    @torch.inference_mode()
    def back_up_prompt(self, chunk: PrefillChunk, start: int, end: int) -> None:
        """Copy a prompt's tokens [start, end) from staging to the host. start: at the edge of a page there."""
        if start == end:
            return

        def work() -> None:
            slots = staging_slots(chunk.staging_pages, end)[start:]
            pages = chunk.host_pages[start // self.cache_config.page_size :]
            self._steps.offload_prompt(
                self._model.staging, upload(slots, self._device), upload(pages, self._device)
            )

        pages = _staging_pages(chunk.staging_pages, start, end)
        self._schedule.back_up_prompt(chunk.seq_index, start, end, pages, work)

    def _page_edge(self, position: int) -> int:
        """Where the host's page of a position begins."""
        return position // self.cache_config.page_size * self.cache_config.page_size

    @torch.inference_mode()
    def step(self, batch: DecodeBatch) -> PendingForward:
        launched = OnItsWay(self, len(batch.seq_indices))
        written: list[Tensor] = []

        def forward() -> Tensor:
            full = bool(self._full[batch.seq_indices].any())
            stepped = self._runner.run(batch.seq_indices, batch.positions, full)
            written.extend((stepped.home, stepped.buffer))
            return self._sample(stepped.logits, batch.seq_indices, batch.sampling, stepped.found)

        def back_up() -> None:
            home, buffer = written
            if home.is_cuda:
                # They were made in the other lane: their memory must not be given to others before this has run.
                for slots in written:
                    slots.record_stream(torch.cuda.current_stream())
            self._steps.offload_step(home, buffer)

        self._schedule.step(batch.seq_indices, batch.positions, lambda: launched.run(forward), back_up)
        return launched

    @torch.inference_mode()
    def restore(self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32) -> None:
        def work() -> None:
            slots = upload(staging_slots(staging_pages, length), self._device)
            self._steps.restore_prompt(self._model.staging, slots, upload(host_pages, self._device))

        self._schedule.restore(seq_index, length, staging_pages, work)

    @torch.inference_mode()
    def admit(self, admission: Admission) -> None:
        self._full[admission.seq_index] = admission.full_attention
        self._schedule.forward(lambda: self._seed(admission))

    def _seed(self, a: Admission) -> None:
        """Fill the tables, and bring what the device keeps to its places."""
        page, staging, device = self.cache_config.page_size, self._model.staging, self._device
        slots = staging_slots(a.staging_pages, a.length)
        seeds = admit(
            self._cache, a.seq_index, a.length,
            torch.from_numpy(a.host_pages.astype(np.int64)), torch.from_numpy(a.device_pages.astype(np.int64)),
            a.full_attention,
        )  # fmt: skip
        places, pages = seeds.device_pages.numpy()[:, None], seeds.pages.numpy()[:, None]
        tokens = (pages * page + np.arange(page)).ravel()
        there = tokens < a.length
        to = (places * page + np.arange(page)).ravel()[there].astype(np.int32)
        self._steps.fill_buffer(staging, upload(slots[tokens[there]], device), upload(to, device))
        if a.first_token is not None:
            # The index and the dense layers have kept what they had; what it feeds may have changed hands.
            self._runner.fed[a.seq_index].fill_(a.first_token)
            return
        at = np.arange(a.length)
        home = upload((a.host_pages[at // page] * page + at % page).astype(np.int32), device)
        from_slots = upload(slots, device)
        self._steps.fill_dense(staging, from_slots, home)
        self._model.index_prompt(self._steps, from_slots, upload(a.host_pages, device), home)

    @torch.inference_mode()  # a pending copy may be launched from here
    def drained(self, seq_index: int) -> bool:
        return self._schedule.drained(seq_index)

    @torch.inference_mode()
    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        if seq_index >= 0:
            self._schedule.release(seq_index)

    def _sample(
        self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch, greedy_found: Tensor | None = None
    ) -> Tensor:
        """Sample the rows of logits, keep what their sequences feed next; `Stepped.found`.

        greedy_found: the same for greedy tokens, which are already fed.
        """
        if sampling.temperature.any():
            options = [sampling.temperature, sampling.top_k, sampling.top_p, sampling.uniforms]
            temperature, top_k, top_p, uniforms = upload(np.array(options, np.float64), self._device)
            filtered = bool((sampling.top_k > 0).any() or (sampling.top_p < 1).any())
            ids = sample(logits, temperature.float(), top_k.int(), top_p.float(), uniforms, filtered=filtered)
        elif greedy_found is not None:
            return greedy_found
        else:
            ids = greedy(logits)
        places = upload(seq_indices.astype(np.int64), self._device)
        return feed(ids, logits, places, self._runner.fed, self._cache)

    def result(self, found: Tensor, rows: int, seconds: float) -> ForwardResult:
        """Read `Stepped.found` of so many rows, on the host."""
        counted, tokens = found[:COUNTERS], found[COUNTERS : COUNTERS + rows]
        now = np.concatenate((counted[:2].numpy().astype(np.float64), counted[2:].view(torch.float64)))
        (hits, misses, captured, judged), self._seen = now - self._seen, now
        backed_up, self._backed_up = self._schedule.backed_up - self._backed_up, self._schedule.backed_up
        return ForwardResult(
            tokens.numpy().astype(np.int32), int(hits), int(misses), seconds, backed_up,
            int(self._schedule.lag().sum()), float(captured), int(judged),
        )  # fmt: skip


def _staging_pages(of_prompt: Int32, start: int, end: int, begun: bool = False) -> Int32:
    """The staging pages in which tokens [start, end) of a prompt stand. begun: but not where one before stands."""
    first = -(-start // STAGING_PAGE_SIZE) if begun else start // STAGING_PAGE_SIZE
    return of_prompt[first : -(-end // STAGING_PAGE_SIZE)]


class OnItsWay:
    """`PendingForward`: what was launched, and on a CUDA device the one event that its result waits for."""

    def __init__(self, worker: CacheWorker, rows: int) -> None:
        self._worker, self._rows = worker, rows
        self._seconds = 0.0

    def run(self, work: Callable[[], Tensor]) -> None:
        """Launch work, which gives `Stepped.found` on the device, and the copy of that to the host."""
        begun = time.perf_counter()
        self._begin = _timed_event() if self._worker._device.type == "cuda" else None
        self._found = work()
        if self._begin is None:
            self._seconds = time.perf_counter() - begun
            return
        host = torch.empty(self._found.shape, dtype=torch.int64, pin_memory=True)
        self._found = host.copy_(self._found, non_blocking=True)
        self._copy_done = _timed_event()

    def result(self) -> ForwardResult:
        if self._begin is not None:
            self._copy_done.synchronize()
            self._seconds = self._begin.elapsed_time(self._copy_done) / 1e3
        return self._worker.result(self._found, self._rows, self._seconds)


def _timed_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
