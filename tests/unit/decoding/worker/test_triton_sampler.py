"""What kernels draw within a step, feed and count is what the sampler does by itself."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.worker.sampler import finite, greedy, sample_batch
from hiscore.decoding.worker.step_runner import COUNTERS, feed, new_input_ids
from hiscore.decoding.worker.token_counts import TokenCounts
from hiscore.decoding.worker.token_sampler import TokenSampler
from hiscore.decoding.worker.triton_sampler import Feeding, draw
from tests.support.decode_kernels import padded_options
from tests.support.tiers import first_of
from tests.unit.decoding.worker.test_step_runner import Counted
from tests.unit.decoding.worker.test_token_sampler import VOCABULARY

# Without a GPU kernels run in Triton's interpreter.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_decode_gpu.py has real graphs"),
]

SEQUENCES = 9
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
    """Where steps leave their logits, and kernels that read them there."""

    def __init__(self, listed: int = 16) -> None:
        self.cache: Any = Counted()
        self.input_ids = new_input_ids(SEQUENCES, torch.device("cpu"))
        self.logits = torch.zeros(BUCKETS[0], VOCABULARY)
        self.counts = TokenCounts(SEQUENCES, torch.device("cpu"), VOCABULARY)
        self.sampler = TokenSampler(SEQUENCES, torch.device("cpu"), self.counts)
        self.listed = listed

    def draw(self, logits: Tensor, seq_indices: np.ndarray, sampling: SamplingBatch) -> Tensor:
        self.logits[: len(logits)] = logits
        self.logits[len(logits) :] = torch.nan  # of padding
        rows = min(rows for rows in BUCKETS if rows >= len(logits))
        options = torch.from_numpy(padded_options(rows, seq_indices, sampling))
        readback = torch.zeros(COUNTERS + rows, dtype=torch.int64)
        feeding = Feeding(readback, self.input_ids, self.counts.table, self.cache)
        return draw(self.logits[:rows], options, feeding, block=32, listed=self.listed)


@pytest.mark.parametrize("rows", first_of(*range(1, 9)))
def test_they_draw_and_feed_what_the_sampler_does(rows: int) -> None:
    steps, unlike_greedy = Steps(), 0
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
        assert not steps.counts.table.any()
        unlike_greedy += int((ids != greedy(logits)).sum())
    assert unlike_greedy, "the control: some are drawn"


def test_padding_is_greedy_and_feeds_nobody() -> None:
    options = padded_options(4, np.array([6, 2], np.int32), batch(2))
    assert options[:2].tolist() == [[6, 2, -1, -1], [-1] * 4]
    assert not options[2:, 2:].any()
