"""What a step feeds, samples and reads back, without a model."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import NOT_FINITE
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.worker.step_runner import COUNTERS, Attends, StepRunner


class Counted:
    hits, misses = torch.tensor([3]), torch.tensor([4])
    mass = torch.tensor([0.5, 2.0], dtype=torch.float64)


class Successor:
    """The most probable token is the one after the token fed; after 8 nothing is finite."""

    def __init__(self) -> None:
        self.cache: Any = Counted()
        self.staging = torch.zeros(0)
        self.seen: list[tuple[list[int], list[int], list[int]]] = []

    def decode(
        self, ids: Tensor, batch: StepBatch, ops: Any, full_attention: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.append((ids.tolist(), batch.seq_indices.tolist(), batch.positions.tolist()))
        logits = torch.eye(10)[(ids.long() + 1) % 10]
        logits[ids == 8] = torch.nan
        return logits, batch.positions + 10, batch.positions + 20


def test_sequences_are_fed_their_newest_tokens() -> None:
    model = Successor()
    runner = StepRunner(model, ops=None, max_sequences=3)
    runner.input_ids.copy_(torch.tensor([1, 4, 8, 0]))
    outputs = runner.forward(np.array([2, 0], np.int32), np.array([7, 5], np.int32), Attends.SELECTED)
    assert model.seen == [([8, 1], [2, 0], [7, 5])]
    assert outputs.host_slots.tolist() == [17, 15]
    assert outputs.buffer_slots.tolist() == [27, 25]
    assert outputs.readback[:2].tolist() == [3, 4]
    assert outputs.readback[2:COUNTERS].view(torch.float64).tolist() == [0.5, 2.0]
    assert outputs.readback[COUNTERS:].tolist() == [NOT_FINITE, 2]
    assert runner.input_ids.tolist()[:2] == [2, 4]
    runner.forward(np.array([0, 1], np.int32), np.array([6, 9], np.int32), Attends.SELECTED)
    assert model.seen[1] == ([2, 4], [0, 1], [6, 9])
