"""The batch of one decode step, on the device."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class StepBatch:
    """One new token of each of R sequences, which attends to its sequence up to itself.

    Rows of the tables, all different, and positions are int32 [R]; -1 and 0 for padding.
    """

    seq_indices: Tensor
    positions: Tensor

    @cached_property
    def valid(self) -> Tensor:
        """True except for padding: bool [R]."""
        return self.seq_indices >= 0

    @cached_property
    def table_rows(self) -> Tensor:
        """Rows that can index a table, int64 [R]; 0 for padding."""
        return self.seq_indices.clamp(min=0).long()
