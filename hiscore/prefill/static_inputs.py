"""Where CUDA graphs read what a forward brings. Forwards that are launched in turns have inputs of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hiscore.attention.metadata import MAX_CONTEXT_SLOTS, NO_SLOT
from hiscore.attention.packed_triton import TileTables
from hiscore.device import PinnedArray
from hiscore.prefill.input_layout import ROW_FIELDS, InputLayout


class StaticInputs:
    """The inputs of one forward at a time, and where its rows begin in what graphs leave."""

    def __init__(
        self, largest: InputLayout, first_row: int, rows_per_tile: int, windowed: bool, device: torch.device
    ) -> None:
        """Allocate them.

        Args:
            largest: The layout of the largest forward.
            first_row: Of the outputs.
            rows_per_tile: Of attention's tiles.
            windowed: Whether there are layers that keep a window only.
            device: Where.
        """
        self.buffer = torch.zeros(largest.size, dtype=torch.int32, device=device)
        self.tables = TileTables(largest.rows, rows_per_tile, device)
        self.context_slots = torch.zeros(MAX_CONTEXT_SLOTS, dtype=torch.int32, device=device)
        self.window_slots = torch.zeros_like(self.context_slots) if windowed else None
        self.first_row = first_row
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep them from other forwards inside.

        Raises:
            RuntimeError: Another forward has slices left to launch.
        """
        if self._held:
            raise RuntimeError("the inputs of a forward would be overwritten between two of its slices")
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def fill(self, buffer: PinnedArray, context_slots: PinnedArray, window_slots: PinnedArray) -> None:
        """Copy a forward's inputs here; empty ones are not read."""
        buffer.copy_to(self.buffer)
        context_slots.copy_to(self.context_slots)
        if self.window_slots is not None:
            window_slots.copy_to(self.window_slots)

    def clear(self, layout: InputLayout) -> None:
        """No tiles and no slots: what is then launched reads and writes no real data."""
        self.buffer.zero_()
        self.buffer[(ROW_FIELDS - 1) * layout.rows : ROW_FIELDS * layout.rows] = NO_SLOT
