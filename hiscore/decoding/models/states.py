"""States of recurrent layers by sequence, on the device: those of prompts, of steps, and copies of them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.recurrence.metadata import FIRST_SEQUENCE_SLOT, PADDING_SLOT, ZERO_SLOT, SpanBatch, StatePlan
from hiscore.recurrence.state_pool import StatePool


class SequenceStates:
    """A pool, whose first slots belong to no sequence, and the slot of each running sequence."""

    def __init__(self, pool: StatePool, max_sequences: int) -> None:
        self.pool = pool
        self._slots = torch.zeros(max_sequences, dtype=torch.int64, device=pool.states.device)

    def admit(self, seq_index: int, slot: int) -> None:
        self._slots[seq_index].fill_(FIRST_SEQUENCE_SLOT + slot)

    def slots_of(self, batch: StepBatch) -> Tensor:
        """Return the pool's slots of a step's rows: int64 [R]."""
        return self._slots[batch.table_rows].where(batch.valid, PADDING_SLOT)

    def copy(self, source: int, to: int) -> None:
        """Copy a state from one sequence's slot or a snapshot's to another."""
        if source != to:
            for each in (self.pool.states, self.pool.tails):
                each[:, FIRST_SEQUENCE_SLOT + to].copy_(each[:, FIRST_SEQUENCE_SLOT + source])

    def keep_ends(self, chunks: Sequence[PrefillChunk]) -> None:
        """Copy the states behind parts of prompts to the snapshots that are to be there, if any."""
        for chunk in chunks:
            if chunk.end in chunk.snapshots:
                self.copy(chunk.state_slot, chunk.snapshots[chunk.end])


def plan_states(chunks: Sequence[PrefillChunk]) -> StatePlan:
    """Plan the states of a forward of parts of prompts: each goes on from its own, which it leaves in its place.

    A part is cut where a snapshot within it is kept: the second of its spans begins with the state of the first. A
    state goes to one place alone, so those behind a part are copied (`SequenceStates.keep_ends`).
    """
    loaded = [FIRST_SEQUENCE_SLOT + chunk.state_slot if chunk.start else ZERO_SLOT for chunk in chunks]
    states, stored, row = len(chunks), dict[int, int](), 0  # of stored: the state by its slot
    # By step: the first row, the one behind the last, and the states before and behind.
    spans: list[list[tuple[int, int, int, int]]] = []
    for before, chunk in enumerate(chunks):
        edges = sorted({chunk.start, *chunk.snapshots, chunk.end})
        for step, (start, end) in enumerate(pairwise(edges)):
            if step == len(spans):
                spans.append([])
            shift = row - chunk.start
            spans[step].append((start + shift, end + shift, before, states))
            before = states
            states += 1
            if end < chunk.end:
                stored[FIRST_SEQUENCE_SLOT + chunk.snapshots[end]] = before
        stored[FIRST_SEQUENCE_SLOT + chunk.state_slot] = before
        row += len(chunk.tokens)
    return StatePlan(
        batches=tuple(map(_batch, spans)),
        loaded=np.array(loaded, np.int64),
        states=states,
        stored=np.array([*stored.values()], np.int64),
        stored_slots=np.array([*stored], np.int64),
    )


def _batch(spans: Sequence[tuple[int, int, int, int]]) -> SpanBatch:
    first, behind, starts, ends = np.array(spans, np.int64).T
    rows = np.concatenate([np.arange(*each) for each in zip(first, behind, strict=True)])
    return SpanBatch(rows, np.concatenate(([0], (behind - first).cumsum())), starts, ends)
