"""Where rows come from changes no bit: all from the host, all resident, or a mix."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import CONTEXT, build, checkpoint, prompt
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models

# Family, tokens selected, tokens in the buffer, the long sequence's prompt.
SPARSE = {
    "quest": ("gemma2", 160, 192, 350),
    "exact": ("qwen2", 16, 24, 60),
    "dsa": ("glm-shared", 16, 24, 60),
}
# All tokens are selected, and the long sequence is not resident as a whole.
WHOLE = {"quest": ("gemma2", 256, 256, 200), "exact": ("qwen2", 96, 96, 60), "dsa": ("glm-wide", 96, 96, 60)}
STEPS = 8


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        directory = tmp_path_factory.mktemp("checkpoint")
        if family == "glm-wide":
            return checkpoint("glm-shared", directory, index_topk=CONTEXT)
        return checkpoint(family, directory)

    return cache(make)


def run(worker: CacheWorker, length: int, cold: bool = False) -> tuple[Tensor, int]:
    """Two sequences in the same steps: logits of all steps, and the misses."""
    driver = Driver(worker)
    admitted = [driver.admit(prompt(n, seed=n), m) for n, m in ((length, CONTEXT - length), (10, 40))]
    seq_indices = [seq_index for seq_index, _ in admitted]
    found = [torch.stack([logits for _, logits in admitted])]
    found += [driver.step(seq_indices, cold=cold) for _ in range(STEPS)]
    assert bool(worker._cache.fully_resident[seq_indices[0]]) is (not worker._cache.sparse)
    for seq_index in seq_indices:
        driver.leave(seq_index)
    return torch.stack(found), driver.misses


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("selector", WHOLE)
def test_all_selected_and_all_from_the_host_is_dense(path: Any, selector: str, dtype: torch.dtype) -> None:
    family, top_k, buffer, length = WHOLE[selector]
    dense, none = run(build(path(family), "dense", dtype=dtype), length)
    cold, misses = run(build(path(family), selector, top_k, buffer, dtype=dtype), length, cold=True)
    assert none == 0
    assert misses > 50
    assert torch.equal(cold, dense)


@pytest.mark.parametrize("selector", SPARSE)
def test_all_missing_is_as_it_happens_to_be(path: Any, selector: str) -> None:
    family, top_k, buffer, length = SPARSE[selector]
    worker = build(path(family), selector, top_k, buffer)
    warm, some = run(worker, length)
    cold, more = run(worker, length, cold=True)
    assert more > some > 0
    assert torch.equal(warm, cold)


@pytest.mark.parametrize("selector", SPARSE)
def test_a_full_sequence_is_dense_beside_a_sparse_one(path: Any, selector: str) -> None:
    family, top_k, buffer, length = SPARSE[selector]
    worker = build(path(family), selector, top_k, buffer, dtype=torch.float64)
    dense = Driver(build(path(family), "dense", dtype=torch.float64))
    driver = Driver(worker)
    sparse, _ = driver.admit(prompt(length), 50)
    full, first = driver.admit(prompt(length), 50, sparse=False)
    reference, expected = dense.admit(prompt(length), 50)
    assert torch.equal(first, expected)
    told_apart = 0.0
    for _ in range(STEPS):
        tokens = [int(dense.worker._runner.input_ids[reference])]
        other, found = driver.step([sparse, full], fed=tokens * 2)
        # Two rows in the products here and one there: float64's rounding.
        assert (found - dense.step([reference])[0]).abs().max() < 1e-9
        told_apart = max(told_apart, float((other - found).abs().max()))
    assert told_apart > 1e-2  # the control: selecting matters
