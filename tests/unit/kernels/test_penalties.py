"""Penalties by kernels are those of PyTorch, to the bit. Without a GPU they run in Triton's interpreter."""

from typing import Any

import numpy as np
import torch

from hiscore.decoding.interface.sampling_batch import History, Penalties, SamplingBatch
from hiscore.decoding.worker.step_runner import COUNTERS, new_input_ids
from hiscore.decoding.worker.token_counts import TokenCounts
from hiscore.decoding.worker.triton_sampler import BLOCK, Feeding, draw
from tests.support.decode_kernels import DEVICE, padded_options
from tests.unit.decoding.worker.test_step_runner import Counted

VOCABULARY = 2 * BLOCK + 9
SEQ_INDICES = np.array([3, 0, 4, 2], np.int32)


def penalties(*histories: History) -> Penalties:
    values = ([1.7, 1.0, 0.3], [0.4, -1.1, 0.0], [0.1, 0.7, -2.0])
    return Penalties(np.array([0, 2, 3]), *(np.array(each, np.float32) for each in values), histories)


def histories() -> list[History]:
    random = np.random.default_rng(0)
    return [
        History(row, *(random.integers(0, VOCABULARY, 900).astype(np.int32) for _ in range(2)))
        for row in (0, 2, 3)
    ]


def test_logits_and_counts_are_those_of_torch() -> None:
    plain, kernels = (TokenCounts(5, torch.device(DEVICE), VOCABULARY) for _ in range(2))
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(0)).to(DEVICE) * 9
    logits[0, ::50], logits[2, ::70] = -torch.inf, -0.0
    expected, changed = logits.clone(), logits.clone()
    plain.penalise(expected, penalties(*histories()), SEQ_INDICES)
    kernels.penalise(logits.clone(), penalties(*histories()), SEQ_INDICES)  # counts what they are about
    none = np.zeros(4, np.float32)
    greedy = SamplingBatch(
        none, none.astype(np.int32), none, none.astype(np.float64), None, None, penalties()
    )
    cache: Any = Counted()
    cache.hits, cache.misses, cache.mass = (
        each.to(DEVICE) for each in (cache.hits, cache.misses, cache.mass)
    )
    readback = torch.zeros(COUNTERS + 4, dtype=torch.int64, device=DEVICE)
    before = kernels.table.clone()
    draw(
        changed,
        torch.from_numpy(padded_options(4, SEQ_INDICES, greedy)).to(DEVICE),
        Feeding(readback, new_input_ids(5, torch.device(DEVICE)), kernels.table, cache),
    )
    assert torch.equal(changed.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(changed[1], logits[1])
    # The control: each of the others is changed by each of its own.
    assert all(int((changed[row] != logits[row]).sum()) > 800 for row in (0, 2, 3))
    ids = readback[COUNTERS:]
    assert torch.equal(ids, expected.argmax(-1))
    plain.count(ids, penalties(), SEQ_INDICES)
    assert torch.equal(kernels.table, plain.table)
    assert int((kernels.table != before).sum()) == 3
