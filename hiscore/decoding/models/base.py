"""A checkpoint's decoder over the cache: what the worker asks of it, for every family alike."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.interface import STAGING_PAGE_SIZE, PrefillChunk


class DecodeModel(Protocol):
    """Prefills into a staging pool, decodes over the cache. Everything is launched on the current stream."""

    cache: KVCache
    staging: Tensor
    """Where prompts are prefilled: [L, slots, C, H, D]."""

    def prefill(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        """Run parts of prompts in one forward: logits of those that are the last, float32 [n, vocabulary]."""
        ...

    def step(self, ids: Tensor, rows: StepBatch, steps: CacheOps) -> tuple[Tensor, Tensor, Tensor]:
        """One token more for each row: ids int32 [R].

        Returns logits float32 [R, vocabulary], and where the tokens' rows were written: slots of `home` and of
        `buffer`, int32 [R] each, -1 for padding. The first row is no padding.
        """
        ...

    def index_prompt(self, steps: CacheOps, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Take a prefilled prompt, at int32 [n] slots of staging, into the index: see `CacheOps.index_prompt`."""


def staging_slots(pages: Int32, tokens: int) -> Int32:
    """Where the first tokens of a prompt stand in the staging pool, int32 [tokens]."""
    slots: Int32 = (pages[:, None] * STAGING_PAGE_SIZE + np.arange(STAGING_PAGE_SIZE, dtype=np.int32)).ravel()
    return slots[:tokens].astype(np.int32)
