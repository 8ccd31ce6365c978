"""Graphs draw what the sampler draws by itself. Here a graph is computed when it is replayed."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.worker.sampler import finite, sample, sample_batch
from hiscore.decoding.worker.sampling_batch import SamplingBatch
from hiscore.decoding.worker.sampling_graphs import SamplingGraphs, padded_options
from hiscore.decoding.worker.step_runner import COUNTERS, feed, new_input_ids
from tests.support.cuda_runner import Capture
from tests.unit.decoding.worker.test_step_runner import Counted

VOCABULARY, SEQUENCES = 50, 9
BUCKETS = (8, 4, 1)


def batch(rows: int, seed: int = 0) -> SamplingBatch:
    random = np.random.default_rng(seed)
    return SamplingBatch(
        random.choice(np.array([0, 0.5, 1, 2], np.float32), rows),
        random.choice(np.array([0, 1, 7, 10**6], np.int32), rows),
        random.choice(np.array([1, 0.9, 0.3], np.float32), rows),
        random.random(rows),
        random.choice(np.array([0, 0.1], np.float32), rows),
    )


class Steps:
    """Where steps leave their logits, and graphs that read them there."""

    def __init__(self, draw: Any = sample) -> None:
        self.cache: Any = Counted()
        self.input_ids = new_input_ids(SEQUENCES, torch.device("cpu"))
        self.logits = torch.zeros(BUCKETS[0], VOCABULARY)
        self.graphs = SamplingGraphs(draw, self.input_ids, self.cache)
        for rows in BUCKETS:
            self.graphs.capture(Capture(nullcontext), self.logits[:rows])  # type: ignore[arg-type]

    def draw(self, logits: Tensor, seq_indices: np.ndarray, sampling: SamplingBatch) -> Tensor:
        self.logits[: len(logits)] = logits
        self.logits[len(logits) :] = torch.nan  # of padding
        rows = min(rows for rows in BUCKETS if rows >= len(logits))
        return self.graphs.sample(rows, seq_indices, sampling)


@pytest.mark.parametrize("rows", range(1, 9))
def test_graphs_draw_and_feed_what_the_sampler_does(rows: int) -> None:
    steps = Steps()
    for seed in range(5):
        logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
        logits[seed % rows, 3] = torch.nan if seed == 4 else 0.0
        seq_indices = np.random.default_rng(seed).permutation(SEQUENCES)[:rows].astype(np.int32)
        sampling = batch(rows, seed)
        steps.input_ids.fill_(-7)
        readback = steps.draw(logits, seq_indices, sampling)
        ids, fed = sample_batch(logits, sampling), torch.full_like(steps.input_ids, -7)
        expected = feed(ids, logits, torch.from_numpy(seq_indices).long(), fed, steps.cache)
        assert readback[: COUNTERS + rows].tolist() == expected.tolist()
        # Rows that are not finite feed an arbitrary token; padding feeds the last element.
        known = seq_indices[finite(logits).numpy()]
        assert steps.input_ids[known].tolist() == fed[known].tolist()
        others = np.setdiff1d(np.arange(SEQUENCES), seq_indices)
        assert set(steps.input_ids[others].tolist()) <= {-7}


def test_the_draws_are_those_of_the_launch() -> None:
    """The control of what is equal above: other uniforms give other tokens, and so do other logits."""
    steps, seq_indices = Steps(), np.arange(8, dtype=np.int32)
    logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(0))
    sampling = batch(8)
    sampling.temperature[:] = 2
    sampling.top_k[:] = 0
    first = steps.draw(logits, seq_indices, sampling).tolist()
    again = steps.draw(logits, seq_indices, sampling).tolist()
    sampling.uniforms[:] = 1 - sampling.uniforms
    assert first == again != steps.draw(logits, seq_indices, sampling).tolist()
    sampling.uniforms[:] = 1 - sampling.uniforms
    assert first != steps.draw(logits.flip(0), seq_indices, sampling).tolist()


@pytest.mark.slow  # Triton's interpreter
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_decode_gpu.py has real graphs")
def test_kernels_draw_the_same_in_graphs() -> None:
    triton_sampler = pytest.importorskip(
        "hiscore.decoding.worker.triton_sampler", reason="the Triton language is not installed"
    )
    steps, kernels = Steps(), Steps(triton_sampler.sample_rows)
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    seq_indices, sampling = np.array([5, 0, 2], np.int32), batch(3, seed=2)
    assert sampling.temperature.any()
    drawn = [each.draw(logits, seq_indices, sampling)[: COUNTERS + 3].tolist() for each in (steps, kernels)]
    assert drawn[0] == drawn[1]


def test_padding_is_greedy_and_feeds_nobody() -> None:
    options = padded_options(4, np.array([6, 2], np.int32), batch(2))
    assert options.shape == (6, 4)
    assert options[0].tolist() == [6, 2, -1, -1]
    assert not options[1:, 2:].any()
