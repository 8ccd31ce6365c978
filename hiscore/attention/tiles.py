"""How packed rows are cut into tiles for the attention kernel: NumPy only.

A tile is a run of consecutive rows of one group, so that all of them share a context. A call has at most three
groups and its items' rows fill tiles whatever their lengths are: there are hardly more tiles than rows need.
"""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.attention.metadata import Forward

# Of a tile: first and last row, begin and end of its context's slots, begin and end of its context's rows.
TILE_FIELDS = 6


@dataclass(frozen=True)
class Tiles:
    """What the kernel reads beside the rows themselves, all int32."""

    segment_starts: Int32
    """[T]: the first row of each row's segment."""
    segment_ends: Int32
    """[T]: one past its last."""
    tiles: Int32
    """[tiles, TILE_FIELDS]: first those that hold a scored row."""
    scored: int
    """How many tiles hold a scored row: the last layer needs no other."""
    context_slots: Int32
    """The pool slots of all contexts, group by group."""


def cut_into_tiles(forward: Forward, rows_per_tile: int) -> Tiles:
    """Cut a forward's groups into tiles of at most `rows_per_tile` rows."""
    groups = np.array(
        [
            (g.first_row, g.last_row, len(g.context_slots), g.context_rows.start, g.context_rows.stop)
            for g in forward.groups
        ]
    )
    counts = -(-(groups[:, 1] - groups[:, 0]) // rows_per_tile)
    of = np.repeat(np.arange(len(groups)), counts)
    first, last, slots, begin_row, end_row = groups[of].T
    begin = first + rows_per_tile * (np.arange(len(of)) - (np.cumsum(counts) - counts)[of])
    end = np.minimum(begin + rows_per_tile, last)
    slot_end = np.cumsum(groups[:, 2])[of]
    tiles = np.stack((begin, end, slot_end - slots, slot_end, begin_row, end_row), axis=1, dtype=np.int32)
    # A tile holds a scored row if one lies between its first and its last.
    ordered = np.sort(forward.scored_rows)
    holds = np.searchsorted(ordered, begin) < np.searchsorted(ordered, end)
    edges = forward.cu_seqlens
    lengths = np.diff(edges)
    return Tiles(
        segment_starts=np.repeat(edges[:-1], lengths),
        segment_ends=np.repeat(edges[1:], lengths),
        tiles=np.concatenate((tiles[holds], tiles[~holds])),
        scored=int(holds.sum()),
        context_slots=np.concatenate([group.context_slots for group in forward.groups]).astype(np.int32),
    )


def max_tiles(rows: int, groups: int, rows_per_tile: int) -> int:
    """The most tiles that so many rows in so many groups can take."""
    return rows // rows_per_tile + groups
