"""The device side of decoding: prefill, decode steps and KV offload for every family, on the CPU and on CUDA.

Forwards go to the COMPUTE queue, copies to the host to the OFFLOAD queue, copies of sequences from there to the
RESTORE queue; `OffloadSchedule` and `Restores` say what waits for which copy. On a CUDA device the host waits
nowhere but in `PendingForward.result`, for one event, and for what `FlashInferAttention` planned for the forward
before.
"""

import time
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import Admission, DecodeBatch, Growth, PendingForward, PrefillChunk
from hiscore.decoding.models.base import DecodeModel, staging_slots
from hiscore.decoding.models.windows import keep_windows
from hiscore.decoding.sparse import block_tables
from hiscore.decoding.worker.admission import bring_to_staging, fill_from_staging, index_from_staging
from hiscore.decoding.worker.device_queues import DeviceQueues, Queue, behind_forwards
from hiscore.decoding.worker.host_copies import HostCopies, Restores
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.result_reader import PendingResult, ResultReader
from hiscore.decoding.worker.step_runner import Attends, StepRunner, feed
from hiscore.decoding.worker.token_sampler import TokenSampler
from hiscore.device.copies import upload

POLL_S = 1e-4


class CacheWorker:
    """`Worker` over a model and its cache; it `follows` if calls come when the first rank's copies are done."""

    def __init__(
        self,
        model: DecodeModel,
        runner: StepRunner,
        queues: DeviceQueues,
        schedule: OffloadSchedule,
        cache_config: CacheConfig,
        follows: bool = False,
    ) -> None:
        self.cache_config = cache_config
        self._model, self._cache, self._runner, self._ops = model, model.cache, runner, runner.ops
        self._queues, self._schedule, self._follows = queues, schedule, follows
        self._device = model.staging.device
        self._sampler = TokenSampler(cache_config.max_sequences, self._device, runner.counts)
        self._full_attention = np.zeros(cache_config.max_sequences, bool)
        self._copies = HostCopies(queues, schedule, self._ops)
        self._restores = Restores(queues, Queue.COMPUTE if cache_config.host_is_shared else Queue.RESTORE)
        # What was prefilled stays in the dense layers, by host page, as long as anybody can find it there.
        self._stays_on_device = cache_config.prompts_in == "dense"
        self._to_copy: dict[int, Prefix] = {}  # what was found and needs host pages of its own
        self.read = ResultReader(schedule).read

    @torch.inference_mode()
    def grow(self, growths: list[Growth]) -> None:
        with self._queues.use(Queue.COMPUTE):
            block_tables.grow(self._cache, growths)

    @torch.inference_mode()
    def step(self, batch: DecodeBatch) -> PendingForward:
        seq_indices, positions = batch.seq_indices, batch.positions
        self._copies.before_step(seq_indices, positions)
        # The forward, sampling and the readback of the tokens.
        with self._queues.use(Queue.COMPUTE):
            pending = PendingResult(
                partial(self.read, sampling=batch.sampling), len(seq_indices), self._device
            )
            if batch.forced is not None:
                rows = np.flatnonzero(batch.forced >= 0)
                at = upload(seq_indices[rows].astype(np.int64), self._device)
                self._runner.input_ids.index_copy_(0, at, upload(batch.forced[rows], self._device))
            outputs = self._runner.forward(seq_indices, positions, self._attends(seq_indices), batch.sampling)
            readback = outputs.readback
            if not outputs.drawn:
                readback = self._sample(outputs.logits, seq_indices, batch.sampling, pending.failures)
            pending.copy_to_host(readback)
        self._copies.offload_step((outputs.host_slots, outputs.buffer_slots), seq_indices, positions)
        return pending

    @torch.inference_mode()
    def prefill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> PendingForward:
        # A page that holds earlier tokens of its prompt needs no wait: their copies read nothing of this chunk.
        new_pages = [_staging_pages(chunk, chunk.start, chunk.end, only_new=True) for chunk in chunks]
        last = np.array([chunk.seq_index for chunk in chunks if chunk.is_last], np.int32)
        self._copies.collect()
        self._copies.wait_for(self._schedule.staging_waits_for(np.concatenate(new_pages)))
        for chunk in chunks:
            self._restores.wait_for(chunk.seq_index)
        with self._queues.use(Queue.COMPUTE):
            pending = PendingResult(partial(self.read, sampling=sampling), len(last), self._device)
            logits = self._model.prefill(chunks)
            keep_windows(self._ops, self._cache.shape, chunks, self._device)
            pending.copy_to_host(self._sample(logits, last, sampling, pending.failures))
        for chunk in chunks:
            if len(chunk.host_pages):
                end = chunk.end if chunk.is_last else self._page_start(chunk.end)
                try:
                    self._copy_found(chunk.seq_index)
                    self.offload_prompt(chunk, self._page_start(chunk.start), end)
                except Exception as error:  # the others of the forward are not concerned
                    pending.failures[chunk.seq_index] = error
        return pending

    @torch.inference_mode()
    def offload_prompt(self, chunk: PrefillChunk, start: int, end: int) -> None:
        """Copy a prompt's tokens [start, end), if any, to the host; `start` is a multiple of the page size."""
        if start == end:
            return
        with behind_forwards(self._queues, Queue.OFFLOAD):
            slots = staging_slots(chunk.staging_pages, end)[start:]
            host_pages = chunk.host_pages[start // self.cache_config.page_size :]
            self._ops.offload_prompt(
                self._model.staging, upload(slots, self._device), upload(host_pages, self._device)
            )
        self._copies.prompt_copied(chunk.seq_index, start, end, _staging_pages(chunk, start, end))

    @torch.inference_mode()
    def fetch(self, prefix: Prefix) -> None:
        self._copies.collect()
        into = prefix.staging_pages[: -(-prefix.tokens // STAGING_PAGE_SIZE)]
        self._copies.wait_for(self._schedule.staging_waits_for(into))
        if self._follows:  # the prefix's pages may still be on their way to the host
            self._copies.wait_for(self._schedule.all_copies())
        if not self._stays_on_device:
            bring_to_staging(self._model, self._ops, self._restores, prefix)
        if self._model.states is not None:
            with self._queues.use(Queue.COMPUTE):
                self._model.states.copy(prefix.source_state, prefix.state_slot)
        self._schedule.restored(prefix.seq_index, prefix.tokens)
        if not np.array_equal(prefix.source_pages, prefix.host_pages):
            self._to_copy[prefix.seq_index] = prefix

    def _copy_found(self, seq_index: int) -> None:
        """Copy what was found, which is in staging, into the host pages that others do not have."""
        prefix = self._to_copy.pop(seq_index, None)
        if prefix is None:
            return
        own = np.flatnonzero(prefix.source_pages != prefix.host_pages)
        slots = staging_slots(prefix.staging_pages, prefix.tokens).reshape(-1, self.cache_config.page_size)
        with behind_forwards(self._queues, Queue.OFFLOAD):
            self._ops.offload_prompt(
                self._model.staging,
                upload(slots[own].ravel(), self._device),
                upload(prefix.host_pages[own], self._device),
            )
        into = prefix.staging_pages[: -(-prefix.tokens // STAGING_PAGE_SIZE)]
        self._copies.prompt_copied(seq_index, 0, prefix.tokens, into)

    @torch.inference_mode()
    def restore(
        self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32, pages: Int64 | None = None
    ) -> None:
        if not self._stays_on_device:
            copied = length
            if pages is not None:
                unfilled = -length % self.cache_config.page_size
                host_pages, copied = host_pages[pages], len(pages) * self.cache_config.page_size - unfilled
            self._copies.collect()
            self._copies.wait_for(self._schedule.staging_waits_for(staging_pages))
            with self._restores.beside_forwards(seq_index):
                slots = upload(staging_slots(staging_pages, copied), self._device)
                self._ops.restore_prompt(self._model.staging, slots, upload(host_pages, self._device))
        self._schedule.restored(seq_index, length)

    @torch.inference_mode()
    def admit(self, admission: Admission) -> None:
        self._full_attention[admission.seq_index] = admission.full_attention
        self._restores.wait_for(admission.seq_index)
        with self._queues.use(Queue.COMPUTE):
            fill_from_staging(self._model, self._ops, admission)
            if self._model.states is not None:
                self._model.states.admit(admission.seq_index, admission.state_slot)
            if admission.first_token is None:
                index_from_staging(self._model, self._ops, admission)
            else:
                # Restored: its dense layers are still there, but its seq_index may have changed.
                attends_to_part = not (admission.full_attention or admission.is_buffer_alone)
                if self.cache_config.resident_if_it_fits and attends_to_part:
                    # While it attended to everything, nothing was added to its index.
                    index_from_staging(self._model, self._ops, admission)
                self._runner.input_ids[admission.seq_index].fill_(admission.first_token)

    @torch.inference_mode()  # a held copy may be launched from here
    def drained(self, seq_index: int) -> bool:
        return self._copies.drained(seq_index) and self._restores.landed(seq_index)

    @torch.inference_mode()
    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        if seq_index >= 0:
            while not self.drained(seq_index):
                if not self._follows:
                    raise RuntimeError(f"sequence {seq_index} has copies in flight")
                time.sleep(POLL_S)
            self._to_copy.pop(seq_index, None)
            self._schedule.release(seq_index)

    def _sample(
        self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch, failures: dict[int, Exception]
    ) -> Tensor:
        """Sample rows, feed their next steps, and return the readback with what `logprobs.unpack` reads."""
        ids, reported, failed = self._sampler.sample(logits, seq_indices, sampling)
        failures |= {int(seq_indices[row]): error for row, error in failed.items()}
        rows = upload(seq_indices.astype(np.int64), self._device)
        readback = feed(ids, logits, rows, self._runner.input_ids, self._cache)
        return readback if reported is None else torch.cat((readback, reported))

    def _attends(self, seq_indices: Int32) -> Attends:
        full = self._full_attention[seq_indices]
        if full.all() or not self._cache.sparse:
            return Attends.FULL
        return Attends.MIXED if full.any() else Attends.SELECTED

    def _page_start(self, position: int) -> int:
        return position // self.cache_config.page_size * self.cache_config.page_size


def _staging_pages(chunk: PrefillChunk, start: int, end: int, only_new: bool = False) -> Int32:
    """Return the staging pages of a prompt's tokens [start, end); only_new: pages without earlier tokens."""
    first = -(-start // STAGING_PAGE_SIZE) if only_new else start // STAGING_PAGE_SIZE
    return chunk.staging_pages[first : -(-end // STAGING_PAGE_SIZE)]
