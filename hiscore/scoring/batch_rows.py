"""The new tokens of a whole batch, one row each: worked out for all prompts at once, then cut into forwards.

A batch may hold hundreds of prompts, and what NumPy takes for an array hardly depends on its size: so nothing here
is done prompt by prompt. Pure NumPy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import Forward, Group
from hiscore.scoring.longrope import LongropeTables
from hiscore.scoring.packed_prompt import PackedPrompt


@dataclass(frozen=True)
class BatchRows:
    """What the rows of a batch are.

    Attributes:
        tokens: int32 [T].
        positions: int32 [T]: of an item they continue those of its query.
        angles: int32 [T]: where in the rotary tables each row's angles are; None: at its position.
        slots: int64 [T]: the pool slot of each row's key and value, or `NO_SLOT`.
        segment_ends: int64 [S], ascending: one past the last row of each query and item that has rows.
        read_rows: int64 [R]: the row at which each item is read.
        read_items: int64 [R]: the index of each among all items of the batch.
    """

    tokens: Int32
    positions: Int32
    angles: Int32 | None
    slots: Int64
    segment_ends: Int64
    read_rows: Int64
    read_items: Int64

    @classmethod
    def of(cls, packed: Sequence[PackedPrompt], longrope: LongropeTables | None = None) -> "BatchRows":
        """The rows of at least one prompt, whose slots are set."""
        items = [p.prompt.item_lengths for p in packed]
        counts = np.array([len(lengths) for lengths in items])
        queries = np.array([p.query for p in packed])
        begins = np.array([p.begin for p in packed])
        cached = np.array([p.cached for p in packed])
        # A prompt's nodes are its query and its items, which follow it.
        of_query = np.cumsum(counts) - counts + np.arange(len(packed))
        lengths = np.empty(int(counts.sum()) + len(packed), np.int64)
        is_item = np.ones(len(lengths), bool)
        is_item[of_query] = False
        lengths[of_query] = queries
        lengths[is_item] = own = np.concatenate(items)
        # In the batch's sequence the cached tokens have no rows.
        computed = lengths.copy()
        computed[of_query] -= cached
        ends = computed.cumsum()
        origins = ends - lengths - queries.repeat(counts + 1)
        origins[of_query] = begins
        # The last row of each item, or of the query for an empty item.
        read = np.where(own > 0, ends[is_item], (begins + queries).repeat(counts)) - 1
        positions = (np.arange(int(ends[-1])) - origins.repeat(computed)).astype(np.int32)
        angles = None
        if longrope is not None:
            tables = np.array([longrope.second if p.prompt.is_long else 0 for p in packed], np.int32)
            angles = positions + tables.repeat(counts + 1).repeat(computed)
        return cls(
            tokens=np.concatenate([p.prompt.tokens[p.cached :] for p in packed]),
            positions=positions,
            angles=angles,
            slots=np.concatenate([p.slots[p.cached :] for p in packed]),
            segment_ends=ends[computed > 0],
            read_rows=read,
            read_items=np.concatenate([p.items for p in packed]),
        )

    def forward(self, begin: int, end: int, groups: Sequence[Group]) -> Forward:
        """Rows `begin` to `end`, whose groups are these."""
        inside = slice(*np.searchsorted(self.segment_ends, (begin, end), side="right"))
        segment_ends = self.segment_ends[inside]
        if not len(segment_ends) or segment_ends[-1] < end:
            segment_ends = np.append(segment_ends, end)  # the forward ends within a query or an item
        read = np.flatnonzero((self.read_rows >= begin) & (self.read_rows < end))
        return Forward(
            input_ids=self.tokens[begin:end],
            positions=self.positions[begin:end],
            cu_seqlens=np.append(0, segment_ends - begin).astype(np.int32),
            groups=tuple(groups),
            slot_mapping=self.slots[begin:end],
            scored_rows=self.read_rows[read] - begin,
            scored_items=self.read_items[read],
            angles=None if self.angles is None else self.angles[begin:end],
        )
