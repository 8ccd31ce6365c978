"""Runs decode steps: the interface, and one that launches each step's work piece by piece."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.interface import NOT_FINITE
from hiscore.decoding.worker.sampler import finite, greedy
from hiscore.device import upload


@dataclass(frozen=True)
class Stepped:
    """What a step leaves on the device. `logits` and `found` hold until the next step is launched.

    logits: float32 [R, vocabulary]. home, buffer: where tokens were written, int32 [R]: see `DecodeModel.step`.
    found: what the host is to read, int64 [COUNTERS + R] or more: `counters`, then greedy tokens, fed next as they
    stand, as `readable` marks them.
    """

    logits: Tensor
    home: Tensor
    buffer: Tensor
    found: Tensor


COUNTERS = 4


def counters(cache: KVCache) -> Tensor:
    """Hits, misses, captured mass and its rows, as bits of int64 [COUNTERS]."""
    return torch.cat((cache.hits, cache.misses, cache.mass.view(torch.int64)))


def readable(ids: Tensor, logits: Tensor) -> Tensor:
    """The tokens int64 [R], `NOT_FINITE` in the place of those whose logits [R, vocabulary] say nothing."""
    return ids.masked_fill(~finite(logits), NOT_FINITE)


def new_fed(sequences: int, device: torch.device) -> Tensor:
    """`StepRunner.fed`, and a place more, for what padding would feed."""
    return torch.zeros(sequences + 1, dtype=torch.int32, device=device)


def feed(ids: Tensor, logits: Tensor, places: Tensor, fed: Tensor, cache: KVCache) -> Tensor:
    """Feed the next step tokens int64 [R], at int64 [R] places of `fed`: `Stepped.found` for them."""
    fed.index_copy_(0, places, ids.int())
    return torch.cat((counters(cache), readable(ids, logits)))


def step(model: DecodeModel, rows: StepBatch, fed: Tensor, steps: CacheOps) -> Stepped:
    """A step fed with `fed`, which gets the greedy tokens for the next one."""
    logits, home, buffer = model.step(torch.index_select(fed, 0, rows.table_rows), rows, steps)
    places = rows.table_rows.where(rows.valid, len(fed) - 1)
    return Stepped(logits, home, buffer, feed(greedy(logits), logits, places, fed, model.cache))


class StepRunner(Protocol):
    """Launches steps on the current stream."""

    steps: CacheOps
    """For the copies beside the steps."""
    fed: Tensor
    """int32 [sequences + 1]: the token that each sequence feeds next."""

    def run(self, seq_indices: Int32, positions: Int32, full: bool) -> Stepped:
        """One step of the sequences at int32 [R] seq_indices, whose new tokens stand at int32 [R] positions.

        full: a sequence that attends to everything is among them.
        """
        ...


class EagerRunner:
    """`StepRunner` without anything prepared: for the CPU, where nothing is gained by it."""

    def __init__(self, model: DecodeModel, steps: CacheOps, sequences: int) -> None:
        self.steps = steps
        self.fed = new_fed(sequences, model.staging.device)
        self._model = model

    def run(self, seq_indices: Int32, positions: Int32, full: bool) -> Stepped:
        both = upload(np.stack((seq_indices, positions)), self.fed.device)
        rows = StepBatch(both[0], both[1])
        return step(self._model, rows, self.fed, self.steps)
