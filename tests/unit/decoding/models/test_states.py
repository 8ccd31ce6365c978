"""States of prompts' parts and of steps: where they go, and kernels that compute them like PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import NO_PAGES, PrefillChunk
from hiscore.decoding.memory.plan import state_lines
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.models.states import plan_states
from hiscore.recurrence import triton_recurrence
from hiscore.recurrence.chunk_tables import ChunkTables
from hiscore.recurrence.gated_delta_net import RecurrentWeights
from hiscore.recurrence.metadata import FIRST_SEQUENCE_SLOT, PADDING_SLOT, ZERO_SLOT
from hiscore.recurrence.state_pool import StatePool
from hiscore.recurrence.torch_recurrence import StepRecurrence, TorchRecurrence
from hiscore.recurrence.triton_recurrence import TritonRecurrence, step_table
from tests.unit.decoding.memory.test_sizing import HYBRID, plan
from tests.unit.kernels.test_gated_delta_net import EPS, ROUNDING, SHAPE

SLOTS = FIRST_SEQUENCE_SLOT + 5


def chunk(start: int, tokens: int, slot: int, snapshots: dict[int, int] | None = None) -> PrefillChunk:
    return PrefillChunk(
        0, np.zeros(tokens, np.int32), start, NO_PAGES, NO_PAGES, False,
        state_slot=slot, snapshots=snapshots or {},
    )  # fmt: skip


# Two prompts begin, with a snapshot within and at the end; they go on by less than a convolution
# sees, and by as much.
FORWARDS = [[chunk(0, 150, 0, {128: 3}), chunk(0, 64, 1, {64: 4})], [chunk(150, 1, 0), chunk(64, 3, 1)]]


def test_parts_go_on_where_they_were_and_are_cut_at_snapshots_within() -> None:
    plan = plan_states(FORWARDS[0])
    assert plan.loaded.tolist() == [ZERO_SLOT, ZERO_SLOT]
    assert [batch.cu_seqlens.tolist() for batch in plan.batches] == [[0, 128, 192], [0, 22]]
    assert [batch.starts.tolist() for batch in plan.batches] == [[0, 1], [2]]
    assert dict(zip(plan.stored_slots - FIRST_SEQUENCE_SLOT, plan.stored, strict=True)) == {3: 2, 0: 3, 1: 4}
    # Kernels know one place of a state.
    assert len(set(plan.stored.tolist())) == len(plan.stored)
    loaded = plan_states([chunk(64, 3, 1), chunk(150, 1, 0)]).loaded
    assert (loaded - FIRST_SEQUENCE_SLOT).tolist() == [1, 0]


@pytest.mark.parametrize("streams", [1, 64])
def test_states_that_kernels_hold_are_planned(streams: int) -> None:
    """They are as many for any MAX_STREAMS. The control: those of PyTorch are fewer for one."""
    pool = StatePool.empty(SHAPE, 1, SLOTS, torch.float32, torch.device("cpu"))
    held = TritonRecurrence(SHAPE, pool, EPS, 2)._own.nbytes
    model = replace(HYBRID, recurrence=SHAPE)
    _, cache_config = plan(MemoryBudget(2**30, 2**30, streams), model)
    on_gpu, on_cpu = (state_lines(model, cache_config, 4, on_gpu)[1].bytes for on_gpu in (True, False))
    assert held <= on_gpu < 2 * held
    assert (on_cpu < held) is (streams == 1)


@pytest.mark.parametrize("taps", [2, 4])
def test_the_table_of_a_step_is_that_of_parts_of_one_token(taps: int) -> None:
    slots = [3, 0, 4]
    expected = ChunkTables(taps).of(plan_states([chunk(9, 1, slot) for slot in slots]))
    assert step_table(FIRST_SEQUENCE_SLOT + torch.tensor(slots), taps).tolist() == expected.tolist()


def largest_difference() -> float:
    """Between kernels and PyTorch, for parts of prompts and steps with padding: in outputs and in what is left."""
    torch.manual_seed(0)
    heads = SHAPE.value_heads
    weights = RecurrentWeights(
        torch.randn(SHAPE.taps, SHAPE.channels), -torch.rand(heads), torch.randn(heads), torch.randn(12)
    )
    pools = [StatePool.empty(SHAPE, 1, SLOTS, torch.float32, torch.device("cpu")) for _ in range(2)]
    plain, steps = TorchRecurrence(SHAPE, pools[0], EPS), StepRecurrence(SHAPE, pools[0], EPS)
    kernels, found = TritonRecurrence(SHAPE, pools[1], EPS, 2), [0.0]

    def compare(one: Tensor, other: Tensor) -> None:
        found.append(float((one - other).abs().nan_to_num(np.inf).max()))

    for chunks in FORWARDS:
        inputs = torch.randn(sum(len(each.tokens) for each in chunks), SHAPE.inputs)
        plain.plan(plan_states(chunks))
        kernels.table = torch.from_numpy(kernels.tables.of(plan_states(chunks)))
        compare(plain.mix(0, weights, inputs), kernels.mix(0, weights, inputs))
    for slots in ([1, 0], [0, 1], [1]):
        inputs = torch.randn(4, SHAPE.inputs)
        of_rows = torch.tensor(
            [*(FIRST_SEQUENCE_SLOT + slot for slot in slots), *[PADDING_SLOT] * (4 - len(slots))]
        )
        for step in (steps, kernels):
            step.plan_steps(of_rows)
        outs = [step.mix(0, weights, inputs)[: len(slots)] for step in (steps, kernels)]
        compare(*outs)
    of_sequences = [slice(FIRST_SEQUENCE_SLOT, FIRST_SEQUENCE_SLOT + 4)] * 2
    for name in ("states", "tails"):
        compare(*(getattr(pool, name)[0, part] for pool, part in zip(pools, of_sequences, strict=True)))
    assert not pools[1].states[0, ZERO_SLOT].any()
    return max(found)


@pytest.mark.slow
def test_steps_by_kernels_equal_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_difference() < ROUNDING
    # The control: each row has its neighbour's state.
    monkeypatch.setattr(triton_recurrence, "step_table", lambda slots, taps: step_table(slots.roll(1), taps))
    assert largest_difference() > 100 * ROUNDING
