"""Run the forward of a decode step: the interface, and its implementation without CUDA graphs."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import NOT_FINITE
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.sampler import finite, greedy
from hiscore.decoding.worker.token_counts import TokenCounts

COUNTERS = 4


class Attends(Enum):
    """Reach of attention of the sequences of a step."""

    SELECTED = "selected"
    """Pages that a selector selects."""
    MIXED = "mixed"
    """Everything for some sequences: page lists may be as long as the longest of them."""
    FULL = "full"
    """Everything for all sequences, which are resident: nothing is scored or selected."""


@dataclass(frozen=True)
class StepOutputs:
    """Tensors that a step leaves on the device.

    Attributes:
        logits: float32 [R, vocabulary], valid until the next step is launched.
        host_slots: int32 [R]: slots of the new tokens in the order of host pages; -1 for padding.
        buffer_slots: int32 [R]: slots of the new tokens in the device buffers; -1 for padding.
        readback: int64 [COUNTERS + R] or more, valid until the next step is launched: `counters` and tokens, which
            are fed to the next step; `NOT_FINITE` for rows without usable logits.
        drawn: The tokens are those that were asked for; else they are greedy.
    """

    logits: Tensor
    host_slots: Tensor
    buffer_slots: Tensor
    readback: Tensor
    drawn: bool = True


def new_input_ids(max_sequences: int, device: torch.device) -> Tensor:
    """Make `StepRunner.input_ids`; the last element takes what padding writes."""
    return torch.zeros(max_sequences + 1, dtype=torch.int32, device=device)


def feed(ids: Tensor, logits: Tensor, rows: Tensor, input_ids: Tensor, cache: KVCache) -> Tensor:
    """Feed sampled ids, int64 [R], to these rows of `input_ids`, int64 [R]; return `StepOutputs.readback`."""
    input_ids.index_copy_(0, rows, ids.int())
    readable = ids.masked_fill(~finite(logits), NOT_FINITE)
    counters = torch.cat((cache.hits, cache.misses, cache.mass.view(torch.int64)))
    return torch.cat((counters, readable))


class StepRunner:
    """Launches the forwards of decode steps on the queue in use.

    Here each operation by itself: for the CPU, where graphs would gain nothing.

    Attributes:
        ops: Operations for the copies beside the forwards.
        input_ids: int32 [max_sequences + 1]: the token that each sequence is fed in its next step.
        counts: Counts of the tokens that steps draw; None if steps do not count.
    """

    def __init__(self, model: DecodeModel, ops: CacheOps, max_sequences: int) -> None:
        self.ops = ops
        self.input_ids = new_input_ids(max_sequences, model.staging.device)
        self.counts: TokenCounts | None = None
        self._model = model

    def forward(
        self, seq_indices: Int32, positions: Int32, attends: Attends, sampling: SamplingBatch | None = None
    ) -> StepOutputs:
        """Launch one step, which is fed tokens at these positions, int32 [R].

        The rows are sampled by `sampling` if the runner can do so within the step; None: greedily.
        """
        batch = StepBatch(*map(torch.from_numpy, (seq_indices, positions)))
        fed = torch.index_select(self.input_ids, 0, batch.table_rows)
        logits, host_slots, buffer_slots = self._model.decode(fed, batch, self.ops, attends is Attends.FULL)
        readback = feed(greedy(logits), logits, batch.table_rows, self.input_ids, self._model.cache)
        drawn = sampling is None or sampling.is_greedy
        return StepOutputs(logits, host_slots, buffer_slots, readback, drawn)
