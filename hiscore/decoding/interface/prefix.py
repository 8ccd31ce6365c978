"""The part of a prompt that was found: tokens that need no prefill, and where they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32


@dataclass(frozen=True)
class Prefix:
    """The beginning of a prompt that is on the host already, and perhaps on the device.

    Attributes:
        seq_index: The sequence's row in the per-sequence tables.
        tokens: How many; whole host pages.
        source_pages: int32 [n], host pages to copy from.
        host_pages: int32 [n], the sequence's own; where they are others, they get a copy.
        staging_pages: int32, the whole prompt's, in the order of positions.
        on_device: bool [n]: which of these are in staging already, but for dense layers. Those have them where the
            sequence's host pages say.
    """

    seq_index: int
    tokens: int
    source_pages: Int32
    host_pages: Int32
    staging_pages: Int32
    on_device: NDArray[np.bool_]

    @property
    def tokens_on_device(self) -> int:
        """Tokens that are not copied from the host."""
        return self.tokens // len(self.on_device) * int(self.on_device.sum())
