"""Attention metadata of a packed forward: its segments, and the context that each group of them sees."""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.recurrence.metadata import StatePlan

NO_SLOT = -1
"""Entry of a slot mapping: this row's key and value are not kept."""
NO_SLOTS: Int64 = np.empty(0, np.int64)
TOKEN_BITS = 20
"""Bits of a token's id. Those above are the number of the adapter that computes it; 0: none does."""
MAX_CONTEXT_SLOTS = 2**22
"""Tokens in the KV pool that the groups of one forward may name together."""


class SegmentGroup(NamedTuple):
    """Consecutive segments with one context: slots of the KV pool, then rows of this forward.

    The rest of an item that began in an earlier forward is a group of one segment, and sees that beginning too.
    """

    first_row: int
    last_row: int
    """One past the group's last row."""
    context_slots: Int64  # [N]: the pool slots of the tokens at positions 0 to N - 1
    context_rows: slice
    """The rows of this forward that hold the rest of the context, in order."""
    own_slots: Int64 = NO_SLOTS
    """[M]: the pool slots of the segment's own beginning. Then `context_rows` is empty."""
    window_slots: Int64 = NO_SLOTS
    """[N]: like `context_slots`, in layers that keep a window only: earlier tokens are not there any more."""


class Forward(NamedTuple):
    """One packed prefill of T new tokens, with R of them read out."""

    input_ids: Int32
    """int32 [T], from bit `TOKEN_BITS` on with the number of the adapter that computes the row."""
    positions: Int32
    """int32 [T]: each item continues the positions of its query, wherever its rows are in the forward."""
    cu_seqlens: Int32  # int32 [segments + 1]: segment s has rows cu_seqlens[s] to cu_seqlens[s + 1]
    groups: tuple[SegmentGroup, ...]
    """Groups cover all rows, in order."""
    slot_mapping: Int64  # int64 [T]: the pool slot of each row's key and value, or `NO_SLOT`
    scored_rows: Int64
    """int64 [R]: the rows read out, one for each item; empty items share their query's last row. And of places."""
    scored_items: (
        Int64  # int64 [R]: the item or place of each scored row, counted over all that the batch reads
    )
    angles: Int32 | None = None
    """int32 [T]: where in the rotary tables each row's angles are; None: at its position."""
    states: StatePlan | None = None
    """The states that recurrent layers find and leave; None: there are no such layers."""
    token_types: Int32 | None = None
    """int32 [T], for encoders: which of a pair's two texts each row belongs to."""
