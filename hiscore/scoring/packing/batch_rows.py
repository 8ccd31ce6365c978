"""The new tokens of a whole batch, one row each, cut into forwards.

NumPy's time for an array hardly depends on its size, so the rows of all prompts are made at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32, Int64, joined
from hiscore.attention.metadata import Forward, SegmentGroup
from hiscore.recurrence.metadata import StatePlan
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.packed_prompt import PackedPrompt


class BatchRows(NamedTuple):
    """The rows of a batch.

    Attributes:
        tokens: int32 [T].
        positions: int32 [T]: of an item they continue those of its query.
        angles: int32 [T]: where in the rotary tables each row's angles are; None: at its position.
        slots: int64 [T]: the pool slot of each row's key and value, or `NO_SLOT`.
        segment_ends: int64 [S], ascending: one past the last row of each query and item that has rows.
        read_ends: int64 [R]: one past the row at which each item is read, its last one; of an empty item the
            query's. Then one past the row of each place.
        read_items: int64 [R]: the index of each among all that the batch reads.
    """

    tokens: Int32
    positions: Int32
    angles: Int32 | None
    slots: Int64
    segment_ends: Int64
    read_ends: Int64
    read_items: Int64

    @classmethod
    def of(cls, packed: Sequence[PackedPrompt], longrope: LongropeTables | None = None) -> "BatchRows":
        """Make the rows of at least one prompt, whose slots are set."""
        # A prompt's nodes are its query and its items, which follow it. The items of one begin at one position.
        new_of_queries = np.array([p.query - p.cached for p in packed])  # the cached tokens have no rows
        counts: list[int] = []  # in turn 1 for a query, and how many items it has
        first_positions: list[int] = []  # in turn of a query's rows, and of its items'
        lengths: list[Int64] = []
        items: list[slice] = []  # of the nodes, each prompt's items
        nodes = 0
        for i, p in enumerate(packed):
            counts += 1, len(p.items)
            first_positions += p.cached, p.query
            lengths += new_of_queries[i : i + 1], p.prompt.item_lengths
            items.append(slice(nodes + 1, nodes := nodes + 1 + len(p.items)))
        computed = np.concatenate(lengths)
        ends = computed.cumsum()
        # Where in the batch position 0 of each is, or would be.
        origins = (ends - computed - np.array(first_positions).repeat(counts)).astype(np.int32)
        positions = np.arange(int(ends[-1]), dtype=np.int32) - origins.repeat(computed)
        segment_ends, read_ends = ends, joined([ends[each] for each in items])
        if np.count_nonzero(computed) < len(computed):
            has_rows = computed > 0
            segment_ends = ends[has_rows]
            # An empty item is read at its query's end.
            query_ends = np.array([p.begin + p.query for p in packed]).repeat(counts[1::2])
            are_computed = joined([has_rows[each] for each in items])
            read_ends = np.where(are_computed, read_ends, query_ends)
        read_items = joined([p.items for p in packed])
        if at_places := [p for p in packed if len(p.places)]:
            rows = [p.begin + p.query + 1 + p.prompt.places for p in at_places]
            read_ends = np.concatenate((read_ends, *rows))
            read_items = np.concatenate((read_items, *(p.places for p in at_places)))
        angles = None
        if longrope is not None:
            tables = np.array([longrope.second if p.prompt.is_long else 0 for p in packed], np.int32)
            angles = positions + tables.repeat([p.end - p.begin - p.cached for p in packed])
        return cls(
            tokens=joined([p.prompt.tokens[p.cached :] for p in packed]),
            positions=positions,
            angles=angles,
            slots=joined([p.slots[p.cached :] for p in packed]),
            segment_ends=segment_ends,
            read_ends=read_ends,
            read_items=read_items,
        )

    def forward(
        self, begin: int, end: int, groups: Sequence[SegmentGroup], states: StatePlan | None = None
    ) -> Forward:
        inside, read_ends, read_items = self.segment_ends[:-1], self.read_ends, self.read_items
        if end - begin < len(self.tokens):  # it may begin and end within a query or an item
            ends = self.segment_ends
            inside = ends[ends.searchsorted(begin, "right") : ends.searchsorted(end)]
            read = ((read_ends > begin) & (read_ends <= end)).nonzero()[0]
            read_ends, read_items = read_ends.take(read), read_items.take(read)
        cu_seqlens = np.empty(len(inside) + 2, np.int32)
        cu_seqlens[0], cu_seqlens[-1] = 0, end - begin
        cu_seqlens[1:-1] = inside - begin
        return Forward(
            input_ids=self.tokens[begin:end],
            positions=self.positions[begin:end],
            cu_seqlens=cu_seqlens,
            groups=tuple(groups),
            slot_mapping=self.slots[begin:end],
            scored_rows=read_ends - (begin + 1),
            scored_items=read_items,
            angles=None if self.angles is None else self.angles[begin:end],
            states=states,
        )
