"""Drives a decode worker without an engine: all sequences start together and step together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import (
    Admission,
    DecodeBatch,
    ForwardResult,
    PendingForward,
    PrefillChunk,
)
from hiscore.decoding.models.base import staging_slots
from hiscore.decoding.pools.page_needs import staging_pages_of
from hiscore.decoding.pools.prompt_pages import staging_pages_in
from hiscore.decoding.worker.step_runner import StepOutputs
from hiscore.decoding.worker.worker import CacheWorker


@dataclass(frozen=True)
class Staged:
    """A prefilled prompt."""

    rows: Tensor
    """Its rows of staging, [L, n, C, H, D]."""
    logits: Tensor
    """float32 [vocabulary], at its last token."""


class Driver:
    """Sequences on one worker.

    Pages are allocated in order, so the worker's pools must hold all sequences at once, and one staged prompt.
    """

    def __init__(
        self,
        worker: CacheWorker,
        prompts: Sequence[Int32],
        room: int,
        full: bool = False,
        staged: Sequence[Staged] | None = None,
    ) -> None:
        """Prefill the prompts and admit their sequences.

        Args:
            worker: Used by one driver at a time.
            prompts: int32 [n] each.
            room: Tokens that may follow each prompt.
            full: Keep whole sequences on the device.
            staged: The prompts as another driver over the same weights prefilled them; grouped-query models only.
        """
        self._worker, self._cache_config = worker, worker.cache_config
        self.logits: Tensor
        """Logits of the latest forward, float32 [R, vocabulary]; R = 1 at the end of a prompt."""
        watch_logits(worker, self._keep)
        self._host = self._device = 0
        self.staged = [
            self._begin(seq_index, prompt, room, full, staged[seq_index] if staged else None)
            for seq_index, prompt in enumerate(prompts)
        ]
        self.seq_indices = np.arange(len(prompts), dtype=np.int32)
        self.lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        """Tokens of each sequence in the cache."""

    def steps(self, count: int) -> float:
        """Launch `count` steps, each fed with the previous one's samples: milliseconds per step."""
        started = time.perf_counter()
        launched = [self._launch() for _ in range(count)]
        for each in launched:
            each.result()
        return 1e3 * (time.perf_counter() - started) / count

    def feed(self, tokens: Int32) -> Tensor:
        """Step over these tokens, int32 [R], instead of the samples: logits, float32 [R, vocabulary]."""
        with torch.inference_mode():
            fed = self._worker._runner.input_ids
            fed[: len(tokens)] = torch.from_numpy(tokens).to(fed.device)
        _synchronize()
        self.result: ForwardResult = self._launch().result()
        return self.logits

    def release(self) -> None:
        """Release all sequences; the worker may get another driver."""
        for seq_index in self.seq_indices.tolist():
            while not self._worker.drained(seq_index):
                time.sleep(0.001)
            self._worker.release(seq_index, np.empty(0, np.int32), np.empty(0, np.int32))

    def _launch(self) -> PendingForward:
        batch = DecodeBatch(self.seq_indices, self.lengths.copy(), greedy(len(self.seq_indices)))
        self.lengths += 1
        return self._worker.step(batch)

    def _begin(self, seq_index: int, prompt: Int32, room: int, full: bool, staged: Staged | None) -> Staged:
        worker, g = self._worker, self._cache_config
        pages = -(-(len(prompt) + room) // g.page_size)
        host = np.arange(self._host, self._host + pages, dtype=np.int32)
        owned = 0 if g.dense else pages if full else min(pages, g.lru_pages + g.ring_pages)
        places = np.arange(self._device, self._device + owned, dtype=np.int32)
        self._host, self._device = self._host + pages, self._device + owned
        if (
            self._host > g.host_pages
            or self._device > g.device_pages
            or (seq_index + 1) * g.window_ring > g.window_pages
        ):
            raise ValueError(f"{seq_index + 1} sequences do not fit into the worker's pools")
        staging = self._staging_of(len(prompt), host, places)
        ring = np.arange(seq_index * g.window_ring, (seq_index + 1) * g.window_ring, dtype=np.int32)
        windows = ring[np.arange(pages) % g.window_ring] if g.window_ring else ring
        whole = PrefillChunk(seq_index, prompt, 0, staging, host, True, full, into_windows=windows)
        if staged is None or g.window_ring:  # what layers keep of a window is not staged
            staged = self._prefill(whole)
        else:
            with torch.inference_mode():
                worker._model.staging[:, staging_slots(staging, len(prompt))] = staged.rows
            _synchronize()  # the worker's queues wait for no other CUDA stream
            worker.offload_prompt(whole, 0, len(prompt))
        worker.admit(Admission(seq_index, len(prompt), host, places, staging, full, None, windows))
        while not worker.drained(seq_index):
            time.sleep(0.001)
        return staged

    def _prefill(self, whole: PrefillChunk) -> Staged:
        for start in range(0, whole.end, self._cache_config.prefill_token_budget):
            part = whole.tokens[start : start + self._cache_config.prefill_token_budget]
            first = start // self._cache_config.page_size
            chunk = replace(
                whole, tokens=part, start=start, is_last=start + len(part) == whole.end,
                window_pages=whole.into_windows, into_windows=whole.into_windows[first:],
            )  # fmt: skip
            self._worker.prefill([chunk], greedy(int(chunk.is_last))).result()
        slots = staging_slots(whole.staging_pages, whole.end)
        return Staged(self._worker._model.staging[:, slots].clone(), self.logits[0])

    def _staging_of(self, tokens: int, host: Int32, places: Int32) -> Int32:
        """Choose the pages of a prompt's prefill: where it stays, if it can, else the last ones of the pool."""
        g = self._cache_config
        if g.prompts_in == "dense":
            return staging_pages_in(host, g)
        if g.prompts_in == "buffers" and len(places) == len(host):
            return staging_pages_in(places, g)
        pages = staging_pages_of(tokens, False, g)
        if g.prompts_in == "staging":
            return np.arange(pages, dtype=np.int32)
        if self._device + pages > g.device_pages:
            raise ValueError(f"{pages} pages to prefill into do not fit beside {self._device}")
        return staging_pages_in(np.arange(g.device_pages - pages, g.device_pages, dtype=np.int32), g)

    def _keep(self, logits: Tensor) -> None:
        self.logits = logits


def watch_logits(worker: CacheWorker, keep: Callable[[Tensor], None]) -> None:
    """Give a copy of the logits of every step, and of every prompt's end, to whoever watches the worker last."""
    runner, model = worker._runner, worker._model
    step, prefill = type(runner).forward, type(model).prefill

    def forward(*arguments: Any) -> StepOutputs:
        outputs = step(runner, *arguments)
        keep(outputs.logits.clone())
        return outputs

    def prefill_and_keep(chunks: list[PrefillChunk]) -> Tensor:
        logits = prefill(model, chunks)
        keep(logits.clone())
        return logits

    vars(runner)["forward"], vars(model)["prefill"] = forward, prefill_and_keep


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def greedy(rows: int) -> SamplingBatch:
    """Greedy sampling for `rows` rows."""
    return SamplingBatch(
        np.zeros(rows, np.float32), np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows)
    )
