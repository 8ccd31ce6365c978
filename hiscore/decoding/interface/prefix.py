"""The part of a prompt that was found: tokens that need no prefill, and where they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiscore.arrays import Int32


@dataclass(frozen=True)
class Prefix:
    """The beginning of a prompt that is on the host already, and perhaps on the device.

    Attributes:
        tokens: Its length; whole host pages.
        source_pages: int32 [n], host pages to copy from.
        host_pages: int32 [n], the sequence's own; a page that is not its source gets a copy.
        staging_pages: int32, the whole prompt's, in the order of positions.
        on_device: bool [n]: pages that staging has already, except in dense layers, which find them by the
            sequence's host pages.
        source_state: Slot of its state in recurrent layers, copied to the sequence's own; -1: there are none.
    """

    seq_index: int
    tokens: int
    source_pages: Int32
    host_pages: Int32
    staging_pages: Int32
    on_device: NDArray[np.bool_]
    source_state: int = -1
    state_slot: int = -1

    @property
    def tokens_on_device(self) -> int:
        """Tokens that are not copied from the host."""
        return self.tokens // len(self.on_device) * int(self.on_device.sum())
