"""Forwards of given segments, whose tokens do not matter."""

from collections.abc import Sequence

import numpy as np

from hiscore.attention.metadata import NO_SLOT, Forward, SegmentGroup


def forward_of(
    lengths: Sequence[int], scored: Sequence[int], groups: Sequence[SegmentGroup] | None = None
) -> Forward:
    edges = np.cumsum([0, *lengths], dtype=np.int32)
    rows = int(edges[-1])
    return Forward(
        input_ids=np.zeros(rows, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        cu_seqlens=edges,
        groups=tuple(groups or [SegmentGroup(0, rows, np.empty(0, np.int64), slice(0, 0))]),
        slot_mapping=np.full(rows, NO_SLOT, np.int64),
        scored_rows=np.array(scored, np.int64),
        scored_items=np.arange(len(scored), dtype=np.int64),
    )
