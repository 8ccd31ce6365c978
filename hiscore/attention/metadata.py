"""What attention is told of a packed forward: its segments, and the context that each group of them sees."""

from dataclasses import dataclass

from hiscore.arrays import Int32, Int64

NO_SLOT = -1


@dataclass(frozen=True)
class Group:
    """Consecutive segments with one context: pool slots first, then rows of this forward."""

    first_row: int
    last_row: int
    """One past the group's last row."""
    context_slots: Int64
    """Pool slots of the tokens at positions 0, 1, 2, ..."""
    context_rows: slice
    """Rows of this forward that hold the rest of the context, in order."""


@dataclass(frozen=True)
class Forward:
    """One packed, prefill-only forward over T new tokens."""

    input_ids: Int32
    """int32 [T]"""
    positions: Int32
    """int32 [T]: every item continues its query's positions, whatever stands between them in the stream."""
    cu_seqlens: Int32
    """int32 [segments + 1]: rows of segment s are cu_seqlens[s] to cu_seqlens[s + 1]."""
    groups: tuple[Group, ...]
    """All rows, in order."""
    slot_mapping: Int64
    """int64 [T]: where in the pool a row's keys and values are kept, or `NO_SLOT`."""
    scored_rows: Int64
    """int64 [R]: the rows read out, one for each answered item; empty items share their query's last row."""
    answers: Int64
    """int64 [R]: the item that each scored row answers, counted over the whole batch."""
