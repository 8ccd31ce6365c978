"""The runner of CUDA on the CPU: what a step takes to the device and draws there. Graphs compute when replayed."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.decoding.interface.sampling_batch import LogitBias, SamplingBatch
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.worker import cuda_graphs
from hiscore.decoding.worker.cuda_graphs import REACHES, ROWS, GraphRunner, buckets_up_to
from hiscore.decoding.worker.sampler import sample_batch
from hiscore.decoding.worker.step_runner import COUNTERS, Attends
from tests.support.cuda_runner import Capture
from tests.unit.decoding.worker.test_step_runner import Counted

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu/test_decode_gpu.py has real graphs"
)

VOCABULARY, SEQUENCES = 50, 6


class Model:
    """Its logits depend on the token that is fed."""

    def __init__(self) -> None:
        self.cache: Any = SimpleNamespace(sparse=False, **vars(Counted))
        self.staging = torch.zeros(0)
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 2

    def decode(self, ids: Tensor, batch: StepBatch, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.seen = batch.seq_indices.tolist(), batch.positions.tolist()
        return self.table[ids.long()], batch.positions, batch.positions


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> GraphRunner:
    zeros: Callable[..., Tensor] = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, pin_memory=False, **kinds: zeros(*size, **kinds))
    monkeypatch.setattr(cuda_graphs, "GraphCapture", lambda device: Capture(nullcontext))
    monkeypatch.setattr(cuda_graphs, "TritonCacheOps", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    config = SimpleNamespace(max_sequences=SEQUENCES, context_length=64)
    queues = SimpleNamespace(use=lambda queue: nullcontext())
    return GraphRunner(*cast(Any, (Model(), None, None, config, queues)))


def batch(seed: float, bias: LogitBias | None = None) -> SamplingBatch:
    return SamplingBatch(
        np.array([1, 0, 0.7], np.float32),
        np.array([0, 0, 9], np.int32),
        np.array([1, 1, 0.9], np.float32),
        np.array([seed, 0.5, 1 - seed]),
        bias=bias,
    )


@pytest.mark.slow
@torch.inference_mode()
def test_a_step_draws_what_is_asked_for_and_feeds_it(runner: GraphRunner) -> None:
    model = cast(Model, runner._model)
    fed = np.array([3, 4, 5], np.int32)
    indices, positions = np.array([5, 0, 2], np.int32), np.array([7, 8, 9], np.int32)
    greedy = model.table.argmax(-1)
    differ = 0
    for step in range(6):
        runner.input_ids[torch.from_numpy(indices).long()] = torch.from_numpy(fed)
        sampling = batch(step / 6)
        expected = sample_batch(model.table[torch.from_numpy(fed).long()], sampling)
        outputs = runner.forward(indices, positions, Attends.FULL, sampling)
        assert outputs.drawn
        assert outputs.readback[:2].tolist() == [3, 4]
        assert outputs.readback[COUNTERS : COUNTERS + 3].tolist() == expected.tolist()
        assert runner.input_ids[torch.from_numpy(indices).long()].tolist() == expected.tolist()
        # Of padding there is one row.
        assert model.seen == ([5, 0, 2, -1], [7, 8, 9, 0])
        # The control: greedy tokens are others.
        differ += int((expected != greedy[torch.from_numpy(fed).long()]).sum())
        fed = expected.numpy().astype(np.int32)
    assert differ > 4


@pytest.mark.slow
@torch.inference_mode()
def test_what_a_step_cannot_draw_is_greedy_and_said_to_be(runner: GraphRunner) -> None:
    model = cast(Model, runner._model)
    bias = LogitBias(np.array([1]), np.array([3]), np.array([9], np.float32))
    indices = np.array([0, 1, 2], np.int32)
    outputs = runner.forward(indices, indices, Attends.FULL, batch(0.9, bias))
    assert not outputs.drawn
    assert outputs.readback[COUNTERS : COUNTERS + 3].tolist() == [int(model.table[0].argmax())] * 3
    assert outputs.logits.tolist() == model.table[:1].repeat(3, 1).tolist()
    again = runner.forward(indices, indices, Attends.FULL)
    assert again.drawn


def test_buckets_grow_to_the_largest_and_have_it() -> None:
    assert buckets_up_to(1, ROWS, 16) == [1]
    assert buckets_up_to(5, ROWS, 16) == [1, 2, 4, 5]
    assert buckets_up_to(48, ROWS, 16) == list(ROWS)
    assert buckets_up_to(64, ROWS, 16) == [*ROWS, 64]
    assert buckets_up_to(100, ROWS, 16) == [*ROWS, 64, 80, 96, 100]
    assert buckets_up_to(2_048, REACHES, 2**30) == [2_048]
    assert buckets_up_to(40_960, REACHES, 2**30) == [*REACHES, 40_960]
