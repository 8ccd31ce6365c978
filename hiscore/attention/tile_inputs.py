"""Description from which a device cuts a forward into tiles (`kernels.attention_tiles`); NumPy only."""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import Forward

HEADER = 4
"""Counts of tiles, groups, segments and scored rows. Attention reads the first, too."""
ALL_SCORED = -1
"""Count of scored rows that says: any tile may hold one, and the rows are not listed."""
GROUP_FIELDS = 8
"""A group's first tile; begin and end of its rows, its context's slots, its context's rows; and the number of
the last slots, which hold the beginning of the segment itself."""
TILE_FIELDS = 11
"""Begin and end of the tile's rows, its context's slots, its context's rows; the number of slots that hold the
beginning of the segment itself; begin and end of a segment with more keys than a tile has rows, and of the
columns of the other segments."""
BLOCK = 32
"""Keys that the kernel adds up at once."""
NO_KEY = -1
"""Entry of a column: no key."""


class Description(NamedTuple):
    """A forward's groups, int32 [groups, GROUP_FIELDS], and segments, whose edges are int32 [segments + 1].

    `context_slots`, int32 [N], are the pool slots of all contexts, group after group, each with the group's own
    slots behind it.
    """

    tiles: int
    groups: Int32
    edges: Int32
    scored: int
    context_slots: Int32

    @property
    def size(self) -> int:
        """Numbers of `write` without scored rows."""
        return HEADER + self.groups.size + len(self.edges)

    def write(self, into: Int32, scored: Int32) -> None:
        """Lay out what the kernel reads, int32 [size + len(scored)].

        `scored`, int32 [n], are the rows that are read, which are all that the last layer computes; empty: they
        are too many to be listed.
        """
        groups_end = HEADER + self.groups.size
        listed = ALL_SCORED if self.scored and not len(scored) else len(scored)
        into[:HEADER] = self.tiles, len(self.groups), len(self.edges) - 1, listed
        into[HEADER:groups_end] = self.groups.ravel()
        into[groups_end : self.size] = self.edges
        into[self.size :] = scored


def describe(forward: Forward, rows_per_tile: int) -> Description:
    """Describe a forward whose groups are cut into tiles of at most `rows_per_tile` rows."""
    groups: list[tuple[int, ...]] = []
    slots: list[Int64] = []
    tiles = slot_end = 0
    for g in forward.groups:
        slot_begin, slot_end = slot_end, slot_end + len(g.context_slots) + len(g.own_slots)
        rows, context = (g.first_row, g.last_row), (g.context_rows.start, g.context_rows.stop)
        groups.append((tiles, *rows, slot_begin, slot_end, *context, len(g.own_slots)))
        tiles += -(-(g.last_row - g.first_row) // rows_per_tile)
        slots += g.context_slots, g.own_slots
    context_slots = np.concatenate(slots, dtype=np.int32, casting="same_kind")
    scored = len(forward.scored_rows)
    return Description(tiles, np.array(groups, np.int32), forward.cu_seqlens, scored, context_slots)


def window_slots(forward: Forward) -> Int32:
    """Slots like `Description.context_slots`, in layers that keep a window only: int32 [N]."""
    slots = [group.window_slots for group in forward.groups]
    return np.concatenate(slots, dtype=np.int32, casting="same_kind")


def max_tiles(rows: int, groups: int, rows_per_tile: int) -> int:
    """An upper bound on the tiles of `rows` rows in `groups` groups."""
    return rows // rows_per_tile + groups


def most_described(rows: int) -> int:
    """An upper bound on the numbers of a description of so many rows, without scored ones."""
    return HEADER + GROUP_FIELDS * rows + rows + 1


def most_columns(rows: int) -> int:
    """Room for the columns of the tiles of so many rows: see `columns_begin` in `kernels.attention_tiles`."""
    return 4 * rows
