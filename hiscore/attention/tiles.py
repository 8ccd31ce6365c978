"""Cuts packed rows into tiles for the attention kernel; NumPy only.

A tile is a run of consecutive rows of one group, which share a context. Short items fill tiles as well as long
ones, and a call has at most three groups, so there are hardly more tiles than the rows need. What else a tile
reads, its own segments, is found in `own_keys`.
"""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import Forward

TILE_FIELDS = 7
"""Begin and end of: the tile's rows, its context's slots, its context's rows. Then how many of the slots hold the
beginning of the segment itself; they are the last."""


class Tiles(NamedTuple):
    """The attention kernel's inputs other than the rows; but for `order` all int32."""

    segment_edges: Int32
    """[segments + 1]: where each segment begins, and the last one ends."""
    segment_starts: Int32
    """[T]: first row of each row's segment."""
    in_row_order: Int32
    """[tiles, TILE_FIELDS]"""
    order: Int64
    """[tiles]: which of them the kernel has in each place. Those that hold a scored row come first."""
    scored: int
    """Tiles that hold a scored row: all that the last layer computes."""
    context_slots: Int32
    """[N]: the pool slots of all contexts, group after group, each with the group's own slots behind it."""

    @property
    def tiles(self) -> Int32:
        """[tiles, TILE_FIELDS]: as the kernel has them."""
        return self.in_row_order[self.order]

    @property
    def segment_ends(self) -> Int32:
        """[T]: one past the last row of each row's segment."""
        edges = self.segment_edges
        return edges[1:].repeat(edges[1:] - edges[:-1])


def cut_into_tiles(forward: Forward, rows_per_tile: int) -> Tiles:
    """Cut the groups of a forward into tiles of at most `rows_per_tile` rows."""
    groups: list[tuple[int, ...]] = []
    counts: list[int] = []
    group_slots: list[Int64] = []
    count = slot_end = 0
    for g in forward.groups:
        slot_begin, slot_end = slot_end, slot_end + len(g.context_slots) + len(g.own_slots)
        # `rows_per_tile` for each tile before is added again below.
        first_row = g.first_row - rows_per_tile * count
        context = g.context_rows
        groups.append(
            (first_row, g.last_row, slot_begin, slot_end, context.start, context.stop, len(g.own_slots))
        )
        counts.append(-(-(g.last_row - g.first_row) // rows_per_tile))
        count += counts[-1]
        group_slots += g.context_slots, g.own_slots
    tiles = np.array(groups, np.int32).repeat(counts, axis=0)
    tiles[:, 0] += np.arange(0, count * rows_per_tile, rows_per_tile, dtype=np.int32)
    begins = tiles[:, 0]
    np.minimum(tiles[:, 1], begins + rows_per_tile, out=tiles[:, 1])
    is_unscored = np.ones(count, bool)
    is_unscored[begins.searchsorted(forward.scored_rows, "right") - 1] = False
    edges = forward.cu_seqlens
    return Tiles(
        segment_edges=edges,
        segment_starts=edges[:-1].repeat(edges[1:] - edges[:-1]),
        in_row_order=tiles,
        order=is_unscored.argsort(kind="stable"),
        scored=count - np.count_nonzero(is_unscored),
        context_slots=np.concatenate(group_slots, dtype=np.int32, casting="same_kind"),
    )


def window_slots(forward: Forward) -> Int32:
    """As `Tiles.context_slots`, in layers that keep a window only: int32 [N]."""
    slots = [group.window_slots for group in forward.groups]
    return np.concatenate(slots, dtype=np.int32, casting="same_kind")


def max_tiles(rows: int, groups: int, rows_per_tile: int) -> int:
    """An upper bound on the tiles of `rows` rows in `groups` groups."""
    return rows // rows_per_tile + groups
