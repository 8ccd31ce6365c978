"""The batch of one decode step, on the device."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class StepBatch:
    """A new token of each of R sequences: table rows, all different, and positions, int32; padding has -1, 0."""

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
