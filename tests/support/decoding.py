"""Decode workers over tiny random checkpoints."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hiscore.arrays import Int32
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import NO_PAGES, Admission, Growth, PrefillChunk
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.sparse.selectors import QUEST_DENSE_LAYERS, SELECTORS
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.parts import Build, load_parts, worker_of_parts
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.device.copies import upload
from hiscore.parallel.group import Group
from hiscore.parallel.rank import Rank
from hiscore.server.server_resources import ServerResources
from hiscore.settings import CacheSettings, PrefixCaching
from tests.support import decode_cache, tiny_dsa, tiny_models
from tests.support.checkpoints import edited_config

CONTEXT = 512
# More than any pool of these sizes can take: the context and the number of sequences bound the pools.
BYTES = 2**31


def checkpoint(name: str, directory: Path, **changes: Any) -> Path:
    """A tiny checkpoint of a family of either sort, with a context short enough for small pools.

    changes: to its config.json, the weights stay as they are.
    """
    kind = tiny_dsa if name in tiny_dsa.FAMILIES else tiny_models
    made: Path = kind.make(name, directory / name)
    with edited_config(made) as config:
        config.get("text_config", config).update({"max_position_embeddings": CONTEXT, **changes})
    return made


def build(
    path: Path,
    selector: str,
    top_k: int = 16,
    buffer: int = 24,
    *,
    ring: int = 4,
    sequences: int = 4,
    chunk: int = 24,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    poison: bool = True,
    dense_layers: int = QUEST_DENSE_LAYERS,
    group: Group | None = None,
    keeps_fp8: bool = False,
    prefix_cache: PrefixCaching = False,
) -> CacheWorker:
    """A worker whose memory is NaN at first and wherever something was released.

    selector: Or "exact", which selects the tokens that attention itself would weigh most: quest by single tokens.
    """
    kinds = {name: replace(SELECTORS[name], dense_layers=dense_layers) for name in ("quest", "auto")}
    if selector == "exact":
        selector, kinds["quest"] = "quest", replace(SELECTORS["quest"], page_size=1, dense_layers=0)
    settings = CacheSettings(
        selector=selector, sparse_top_k=top_k, device_buffer_size=buffer, backup_ring=ring,
        prefix_cache=prefix_cache,
    )  # type: ignore[arg-type]  # fmt: skip
    memory = MemoryBudget(BYTES, BYTES, sequences)
    with mock.patch.dict(SELECTORS, kinds):
        what = Build(settings, path, dtype, chunk, keeps_fp8)
        rank = Rank(torch.device(device), group or Group())
        worker = worker_of_parts(load_parts(what, memory, rank, ServerResources()), rank.group)
    if poison:
        with torch.inference_mode():
            shape = worker._cache.shape
            everywhere = (
                torch.arange(pages, device=device) for pages in (shape.host_pages, shape.device_pages)
            )
            decode_cache.poison(worker._cache, *everywhere)
            worker._cache.window_kv.fill_(math.nan)
            worker._model.staging.fill_(math.nan)
            if device != "cpu":
                torch.cuda.synchronize()  # the worker's queues wait for no other CUDA stream
        _poison_on_release(worker)
    return worker


def _poison_on_release(worker: CacheWorker) -> None:
    release, windows = worker.release, WindowPages(worker)

    @torch.inference_mode()
    def release_and_poison(seq_index: int, host_pages: np.ndarray, device_pages: np.ndarray) -> None:
        release(seq_index, host_pages, device_pages)
        with worker._queues.use(Queue.COMPUTE):
            freed = (host_pages, device_pages, windows.freed_with(host_pages))
            pages = (upload(each.astype(np.int64), worker._device) for each in freed)
            decode_cache.poison(worker._cache, *pages)

    worker.release = release_and_poison  # type: ignore[method-assign]


class WindowPages:
    """Which window pages a worker's sequences have, by their first page on the host: `release` does not say."""

    def __init__(self, worker: CacheWorker) -> None:
        self._ring = worker.cache_config.window_ring
        self._held: dict[int, tuple[Int32, Int32]] = {}
        self._first: dict[int, int] = {}  # by the sequence's index
        prefill, admit, grow = worker.prefill, worker.admit, worker.grow

        def watched_prefill(chunks: list[PrefillChunk], *others: Any) -> Any:
            for each in chunks:
                before = each.window_pages[: each.start // worker.cache_config.page_size]
                self._take(each.seq_index, each.host_pages, np.concatenate((before, each.into_windows)))
            return prefill(chunks, *others)

        def watched_admit(admission: Admission) -> None:
            self._take(admission.seq_index, admission.host_pages, admission.window_pages)
            admit(admission)

        def watched_grow(growths: list[Growth]) -> None:
            for each in growths:
                host, window = self._held.get(self._first.get(each.seq_index, -1), (NO_PAGES, NO_PAGES))
                window = np.concatenate((window[: each.start], each.window_pages))
                self._take(each.seq_index, np.concatenate((host, each.host_pages)), window)
            grow(growths)

        worker.prefill = watched_prefill  # type: ignore[method-assign]
        worker.admit = watched_admit  # type: ignore[method-assign]
        worker.grow = watched_grow  # type: ignore[method-assign]

    def _take(self, seq_index: int, host: Int32, window: Int32) -> None:
        if len(host):
            self._first[seq_index] = int(host[0])
            self._held[int(host[0])] = host, window[: self._ring]

    def freed_with(self, host_pages: Int32) -> Int32:
        """The window pages that are free when these are, a sequence's last ones on the host: int32 [n]."""
        for first, (host, window) in self._held.items():
            if len(host_pages) and np.isin(host_pages, host).all():
                left = len(host) - len(host_pages)
                self._held[first] = host[:left], window[:left]
                return window[left:]
        return NO_PAGES


def prompt(length: int, seed: int = 0, vocabulary: int = tiny_dsa.VOCABULARY) -> np.ndarray:
    """int32 [length]"""
    return np.random.default_rng(seed).integers(3, vocabulary, length).astype(np.int32)


def greedy(rows: int) -> SamplingBatch:
    return SamplingBatch(
        np.zeros(rows, np.float32), np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows)
    )
