"""The batch of one decode step, on the device."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class StepBatch:
    """One new token of each of R sequences; a token attends to its sequence up to itself.

    Attributes:
        seq_indices: int32 [R], rows of the per-sequence tables, all different; -1 for padding.
        positions: int32 [R], the new tokens' positions; 0 for padding.
    """

    seq_indices: Tensor
    positions: Tensor

    @cached_property
    def valid(self) -> Tensor:
        """bool [R]: False for padding."""
        return self.seq_indices >= 0

    @cached_property
    def table_rows(self) -> Tensor:
        """int64 [R]: `seq_indices` that can index a table; 0 for padding."""
        return self.seq_indices.clamp(min=0).long()
