"""Cuts packed rows into tiles for the attention kernel; NumPy only.

A tile is a run of consecutive rows of one group, which share a context. Short items fill tiles as well as long
ones, and a call has at most three groups, so there are hardly more tiles than the rows need. What else a tile
reads, its own segments, is found in `own_keys`.
"""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.attention.metadata import Forward

TILE_FIELDS = 7
"""Begin and end of: the tile's rows, its context's slots, its context's rows. Then how many of the slots hold the
beginning of the segment itself; they are the last."""


@dataclass(frozen=True)
class Tiles:
    """The attention kernel's inputs other than the rows; all int32."""

    segment_starts: Int32
    """[T]: first row of each row's segment."""
    segment_ends: Int32
    """[T]: one past the last row of each row's segment."""
    tiles: Int32
    """[tiles, TILE_FIELDS]: those that hold a scored row come first."""
    scored: int
    """Tiles that hold a scored row: all that the last layer computes."""
    context_slots: Int32
    """[N]: the pool slots of all contexts, group after group, each with the group's own slots behind it."""


def cut_into_tiles(forward: Forward, rows_per_tile: int) -> Tiles:
    """Cut the groups of a forward into tiles of at most `rows_per_tile` rows."""
    group_slots = [np.concatenate((group.context_slots, group.own_slots)) for group in forward.groups]
    groups = np.array(
        [
            (g.first_row, g.last_row, len(slots), g.context_rows.start, g.context_rows.stop, len(g.own_slots))
            for g, slots in zip(forward.groups, group_slots, strict=True)
        ]
    )
    counts = -(-(groups[:, 1] - groups[:, 0]) // rows_per_tile)
    group_of_tile = np.repeat(np.arange(len(groups)), counts)
    first, last, slots, context_begin, context_end, own = groups[group_of_tile].T
    index_in_group = np.arange(len(group_of_tile)) - (np.cumsum(counts) - counts)[group_of_tile]
    begin = first + rows_per_tile * index_in_group
    end = np.minimum(begin + rows_per_tile, last)
    slot_end = np.cumsum(groups[:, 2])[group_of_tile]
    tiles = np.empty((len(begin), TILE_FIELDS), np.int32)
    for place, field in enumerate((begin, end, slot_end - slots, slot_end, context_begin, context_end, own)):
        tiles[:, place] = field
    scored_rows = np.sort(forward.scored_rows)
    is_scored = np.searchsorted(scored_rows, begin) < np.searchsorted(scored_rows, end)
    edges = forward.cu_seqlens
    lengths = np.diff(edges)
    return Tiles(
        segment_starts=np.repeat(edges[:-1], lengths),
        segment_ends=np.repeat(edges[1:], lengths),
        tiles=np.concatenate((tiles[is_scored], tiles[~is_scored])),
        scored=int(is_scored.sum()),
        context_slots=np.concatenate(group_slots).astype(np.int32),
    )


def window_slots(forward: Forward) -> Int32:
    """As `Tiles.context_slots`, in layers that keep a window only: int32 [N]."""
    return np.concatenate([group.window_slots for group in forward.groups]).astype(np.int32)


def max_tiles(rows: int, groups: int, rows_per_tile: int) -> int:
    """An upper bound on the tiles of `rows` rows in `groups` groups."""
    return rows // rows_per_tile + groups
