"""Layout of a forward's inputs on CUDA in one buffer, for each number of rows with a graph, and the buffers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS, NO_SLOT, Forward
from hiscore.attention.packed_triton import TileInputs, TileTables
from hiscore.attention.tile_inputs import describe, most_described
from hiscore.device.copies import PinnedArray
from hiscore.prefill.row_counts import MIN_ROWS
from hiscore.recurrence.chunk_tables import table_size

ROW_FIELDS = 4
"""Token id, position, place in the rotary tables, KV slot."""
SCORED_STEP = 64
"""The rows that are read are padded to a multiple of this."""
MAX_TAIL_ROWS = 512
"""Scored rows, at most, that lie behind the other inputs and have a graph for their tail. With more, the device
computes longer than the host launches."""
NO_ROWS: Int32 = np.empty(0, np.int32)


def pad_scored(rows: Int64) -> Int32:
    """The rows to read, padded with row 0 to at least `MIN_ROWS`, unless there are none."""
    padded = np.zeros(max(-(-len(rows) // SCORED_STEP) * SCORED_STEP, MIN_ROWS) if len(rows) else 0, np.int32)
    padded[: len(rows)] = rows
    return padded


@dataclass(frozen=True)
class InputLayout:
    """Layout of a forward's inputs in one int32 buffer, for a number of rows with padding."""

    rows: int

    def pack(self, forward: Forward, rows_per_tile: int, scored: Int32 = NO_ROWS) -> tuple[Int32, Int32]:
        """Lay out a forward: its buffer, int32 [used], and the slots of all contexts, int32 [N].

        The `scored` rows to read, at most `MAX_TAIL_ROWS`, lie behind the rest; empty: there are none, or more.
        """
        found, row_values = describe(forward, rows_per_tile), ROW_FIELDS * self.rows
        buffer = np.zeros(row_values + found.size + len(scored), np.int32)
        self._fill(buffer[:row_values], forward)
        found.write(buffer[row_values:], scored)
        return buffer, found.context_slots

    def pack_rows(self, forward: Forward, scored: Int32) -> Int32:
        """The same without what only our own attention reads; padding repeats a token: see `FlashInferRows`."""
        row_values = ROW_FIELDS * self.rows
        buffer = np.zeros(row_values + len(scored), np.int32)
        self._fill(buffer[:row_values], forward)[0, len(forward.input_ids) :] = forward.input_ids[0]
        buffer[row_values:] = scored
        return buffer

    def _fill(self, buffer: Int32, forward: Forward) -> Int32:
        rows = buffer.reshape(ROW_FIELDS, self.rows)
        count = len(forward.input_ids)
        rows[0, :count], rows[1, :count] = forward.input_ids, forward.positions
        rows[2, :count] = forward.positions if forward.angles is None else forward.angles
        rows[3, :count], rows[3, count:] = forward.slot_mapping, NO_SLOT
        return rows

    @property
    def size(self) -> int:
        return ROW_FIELDS * self.rows + most_described(self.rows) + MAX_TAIL_ROWS

    def views(
        self, buffer: Tensor, context_slots: Tensor, tables: TileTables
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, TileInputs]:
        """Views of `buffer`: token ids, positions, angles, slot mapping, int32 [rows] each; attention's inputs."""
        rows, described = buffer[: ROW_FIELDS * self.rows], buffer[ROW_FIELDS * self.rows :]
        ids, positions, angles, slot_mapping = rows.view(ROW_FIELDS, self.rows)
        return ids, positions, angles, slot_mapping, TileInputs(positions, described, context_slots, tables)


class StaticInputs:
    """The inputs that CUDA graphs read, of one forward at a time; forwards launched in turns have one each."""

    def __init__(
        self,
        largest: InputLayout,
        first_row: int,
        rows_per_tile: int,
        windowed: bool,
        taps: int,
        device: torch.device,
    ) -> None:
        """Allocate the inputs of the largest forward, whose rows begin at `first_row` in the outputs of graphs.

        If `windowed`, some layers keep a window only; with `taps`, some are recurrent.
        """
        self.buffer = torch.zeros(largest.size, dtype=torch.int32, device=device)
        self.tables = TileTables(largest.rows, rows_per_tile, device)
        self.context_slots = torch.zeros(MAX_CONTEXT_SLOTS, dtype=torch.int32, device=device)
        self.window_slots = torch.zeros_like(self.context_slots) if windowed else None
        states = table_size(largest.rows, taps) if taps else 0
        self.state_table = torch.zeros(states, dtype=torch.int32, device=device)
        self.first_row = first_row
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the inputs from other forwards inside, or raise RuntimeError: another has slices left to launch."""
        if self._held:
            raise RuntimeError("the inputs of a forward would be overwritten between two of its slices")
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def fill(
        self, buffer: PinnedArray, context_slots: PinnedArray, window_slots: PinnedArray, states: PinnedArray
    ) -> None:
        """Copy a forward's inputs here; empty ones are not read."""
        buffer.copy_to(self.buffer)
        context_slots.copy_to(self.context_slots)
        if self.window_slots is not None:
            window_slots.copy_to(self.window_slots)
        states.copy_to(self.state_table)

    def clear(self, layout: InputLayout) -> None:
        """No tiles and no slots: what is then launched reads and writes no real data."""
        self.buffer.zero_()
        self.state_table.zero_()
        self.buffer[(ROW_FIELDS - 1) * layout.rows : ROW_FIELDS * layout.rows] = NO_SLOT
