"""A decode worker driven by hand, and the contents of its pools."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import DecodeBatch, ForwardResult, PendingForward, PrefillChunk
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.page_needs import PagesNeeded, device_pages_of, pages_needed, staging_pages_of
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.decoding.scheduling.batch import make_admission
from hiscore.decoding.sequence import DecodeCall, Sequence
from hiscore.decoding.worker.worker import CacheWorker
from perf.decoding.worker_driver import watch_logits
from tests.support.decode_cache import forget
from tests.support.decoding import greedy


class Driver:
    """Calls a worker as an engine does, and reads each result at once."""

    def __init__(self, worker: CacheWorker) -> None:
        self.worker = worker
        self.blocks = BlockManager(worker.cache_config)
        self.sequences: dict[int, Sequence] = {}
        self.results: list[ForwardResult] = []
        self.failures: list[Exception] = []
        self.sampling: Callable[[int], SamplingBatch] = greedy
        self._logits: list[Tensor] = []

        watch_logits(worker, self._logits.append)

    def admit(
        self, tokens: np.ndarray, max_tokens: int, sparse: bool = True, resident: bool = False
    ) -> tuple[int, Tensor]:
        """Prefill and admit a prompt.

        Returns:
            Its index, and the logits after its last token, [vocabulary].
        """
        worker, cache_config = self.worker, self.worker.cache_config
        params = SamplingParams(max_tokens=max_tokens, sparse=sparse)
        sequence = Sequence(DecodeCall(tokens, params, math.inf), None, StopChecker(params, frozenset()))
        self._end_staging()
        # All that it will need until its end: a buffer with LRU from the start, if it needs one then.
        sequence.resident = resident
        needed = pages_needed(
            sequence.call, len(tokens) + max_tokens - 1, cache_config, resident, staged=len(tokens)
        )
        self.blocks.allocate(sequence, needed)
        for start in range(0, len(tokens), cache_config.prefill_token_budget):
            part = tokens[start : start + cache_config.prefill_token_budget]
            before, into = self.blocks.windows.of_chunk(sequence, len(part))
            last = start + len(part) == len(tokens)
            pages = sequence.held.staging_pages, sequence.held.host_pages
            seq_index, windows = sequence.held.seq_index, (before, into)
            chunk = PrefillChunk(
                seq_index, part, start, *pages, last, not sparse, *windows, sequence.held.state_slot
            )
            sequence.prefilled = chunk.end
            self._read(worker.prefill([chunk], greedy(int(last))))
            logits = self._logits.pop()
        sequence.sampled = 1
        worker.admit(make_admission(sequence))
        self.sequences[sequence.held.seq_index] = sequence
        return sequence.held.seq_index, logits[0]

    def step(self, seq_indices: list[int], fed: list[int] | None = None, cold: bool = False) -> Tensor:
        """Logits [R, vocabulary] of a step; cold: without all device pages but the ring."""
        return self.read(self.launch(seq_indices, fed, cold))

    @torch.inference_mode()
    def launch(
        self, seq_indices: list[int], fed: list[int] | None = None, cold: bool = False
    ) -> PendingForward:
        """Launch a step without waiting, unless `fed` or `cold` is given; see `step`."""
        on_cuda = self.worker._device.type == "cuda"
        if on_cuda and (cold or fed is not None):
            torch.cuda.synchronize()
        for seq_index in seq_indices if cold else ():
            self._forget(seq_index)
        if fed is not None:
            at = torch.tensor(list(seq_indices), device=self.worker._device)
            self.worker._runner.input_ids[at] = torch.tensor(list(fed), dtype=torch.int32, device=at.device)
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
        self._read(launched)
        return self._logits.pop(0)

    def leave(self, seq_index: int, preempt: bool = False) -> Sequence:
        self.drain(seq_index)
        sequence = self.sequences.pop(seq_index)
        sequence.output_ids = [int(self.worker._runner.input_ids[seq_index])] * sequence.sampled
        released = self.blocks.free(sequence, len(self.blocks.blocks_of(sequence)) if preempt else 0)
        self.worker.release(released.seq_index, released.host, released.device)
        return sequence

    def resume(self, sequence: Sequence) -> int:
        cache_config, pages = self.worker.cache_config, len(sequence.held.host_pages)
        device = device_pages_of(pages, sequence.call, cache_config, sequence.resident)
        staged = self.blocks._prompts.to_stage(sequence)
        staging = staging_pages_of(staged, device == pages, cache_config)
        self.blocks.allocate(sequence, PagesNeeded(0, device, staging))
        sequence.restored = True
        self.worker.restore(
            sequence.held.seq_index, sequence.length, sequence.held.host_pages, sequence.held.staging_pages,
            sequence.held.restored_pages,
        )  # fmt: skip
        self.worker.admit(make_admission(sequence))
        self.sequences[sequence.held.seq_index] = sequence
        return sequence.held.seq_index

    def drain(self, seq_index: int) -> None:
        """Wait until all offloads of a sequence have landed."""
        for _ in range(10**6):
            if self.worker.drained(seq_index):
                return
        raise AssertionError(f"sequence {seq_index} does not drain")

    def _end_staging(self) -> None:
        for sequence in self.sequences.values():
            self.worker.drained(sequence.held.seq_index)  # which polls what has landed
            if (
                len(sequence.held.staging_pages)
                and self.worker._schedule._landed[sequence.held.seq_index] >= sequence.prefilled - 1
            ):
                self.blocks.free_staging(sequence)

    def _forget(self, seq_index: int) -> None:
        """Leave only the ring resident, and poison the rest."""
        cache, shape = self.worker._cache, self.worker._cache.shape
        forget(cache, seq_index)
        if not cache.fully_resident[seq_index]:
            device_pages = cache.device_block_table[seq_index, : shape.lru_pages].long()
            cache.buffer.unflatten(1, (-1, shape.page_size))[:, device_pages] = math.nan

    def _read(self, launched: PendingForward) -> None:
        self.results.append(launched.result())
        self.failures += launched.failures.values()

    @property
    def misses(self) -> int:
        return sum(result.misses for result in self.results)


def host_rows(worker: CacheWorker, sequence: Sequence, positions: Tensor) -> Tensor:
    """A sequence's keys and values in the host pool: [Lh, n, C, H, D] for int64 [n] positions."""
    page = worker.cache_config.page_size
    pages = torch.from_numpy(sequence.held.host_pages.astype(np.int64))[positions // page]
    return worker._cache.host_kv[:, pages, :, :, positions % page].permute(1, 0, 3, 2, 4)


def device_rows(worker: CacheWorker, sequence: Sequence, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """A sequence's tokens on the device in a layer and head: int64 [n] positions, and their rows [n, C, D]."""
    cache, shape, page = worker._cache, worker._cache.shape, worker._cache.shape.page_size
    host = torch.from_numpy(sequence.held.host_pages.astype(np.int64))
    pages = torch.arange(-(-sequence.length // page))
    if layer in cache.dense:
        device_pages = host[pages]
    else:
        table = cache.device_block_table[sequence.held.seq_index].cpu().long()
        in_ring = pages > (sequence.length - 1) // page - shape.ring_pages
        under_lru = cache.device_page_of[cache.sparse[layer], :, head].cpu().long()[host[pages]]
        device_pages = torch.where(in_ring, table[shape.lru_pages + pages % shape.ring_pages], under_lru)
        if bool(cache.fully_resident[sequence.held.seq_index]):
            device_pages = table[pages]
    pages, device_pages = pages[device_pages >= 0], device_pages[device_pages >= 0]
    positions = (pages[:, None] * page + torch.arange(page)).flatten()
    slots = (device_pages[:, None] * page + torch.arange(page)).flatten()[positions < sequence.length]
    return positions[positions < sequence.length], cache.tokens(layer)[:, :, head].cpu()[slots]
