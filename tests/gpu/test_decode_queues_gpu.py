"""The worker's order on real CUDA streams, with each queue delayed in turn: correct, and wrong without waits."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.interface.worker import NO_PAGES, DecodeBatch
from hiscore.decoding.worker.cuda_queues import CudaQueues
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import StepOutputs
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decode_worker import TINY
from tests.support.decoding import greedy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


class Sleeping:
    """A model whose forwards take about 30 ms and whose copies take 120, after which they have landed."""

    def __init__(self) -> None:
        self.cache: Any = SimpleNamespace(sparse=True)
        self.staging = torch.zeros(0)
        self.ops: Any = self
        self.input_ids = torch.zeros(3, dtype=torch.int32)
        self.counts: Any = None
        self.restoring = 0

    def forward(self, *_: Any) -> StepOutputs:
        torch.cuda._sleep(50_000_000)
        return StepOutputs(*torch.zeros(4, 1).unbind())

    def offload_step(self, *_: Any) -> None:
        torch.cuda._sleep(200_000_000)

    def restore_prompt(self, *_: Any) -> None:
        torch.cuda._sleep(self.restoring)


@pytest.mark.parametrize("width", [4, 1])
def test_the_ring_overlaps(width: int) -> None:
    """What has landed when the second forward ends?"""
    queues, model = CudaQueues(torch.device("cuda")), Sleeping()
    schedule = OffloadSchedule(width, 1, 1)
    config = replace(TINY, max_sequences=1)
    worker = CacheWorker(model, model, queues, schedule, config)  # type: ignore[arg-type]
    worker.restore(0, 1, NO_PAGES, NO_PAGES)
    model.forward()
    torch.cuda.synchronize()
    for position in (1, 2):
        batch = DecodeBatch(np.zeros(1, np.int32), np.array([position], np.int32), greedy(1))
        worker.step(batch)
    queues._streams[Queue.COMPUTE].synchronize()
    assert not worker.drained(0)
    # Landed: position 1 where the second forward waited for its copy, only the prompt (0) under the ring.
    assert schedule.lag()[0] == (2 if width == 4 else 1)
    torch.cuda.synchronize()
    assert worker.drained(0)


def test_a_restore_holds_up_no_step() -> None:
    """Two steps of another sequence have ended before it has landed."""
    queues, model = CudaQueues(torch.device("cuda")), Sleeping()
    config = replace(TINY, max_sequences=2)
    worker = CacheWorker(model, model, queues, OffloadSchedule(4, 2, 1), config)  # type: ignore[arg-type]
    worker.restore(0, 1, NO_PAGES, NO_PAGES)
    model.forward()
    torch.cuda.synchronize()
    assert worker.drained(0)
    model.restoring = 1_000_000_000
    worker.restore(1, 1, NO_PAGES, NO_PAGES)
    for position in (1, 2):
        worker.step(DecodeBatch(np.zeros(1, np.int32), np.array([position], np.int32), greedy(1)))
    queues._streams[Queue.COMPUTE].synchronize()
    assert not worker.drained(1)
    torch.cuda.synchronize()
    assert worker.drained(1)
