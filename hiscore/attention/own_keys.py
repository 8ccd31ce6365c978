"""Where a tile's rows find the keys of their own segments; NumPy only.

A tile of short items reads the keys of all of them a block at a time. Within its block a segment's keys fill a
*slot*: as many columns as the next power of two, at a multiple of that. A row takes no weight from the columns of
other slots, and adding zeros is exact. So the terms of a row's sums meet in the same order wherever in a block the
slot is: products and reductions over columns go one after another, or by powers of two. No bit of a row depends on
the tile's other segments, or on whether the block is its segment's alone.
"""

from functools import cache

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.tiles import TILE_FIELDS, Tiles

FIELDS = TILE_FIELDS + 4
"""Of a tile with its own keys: behind `TILE_FIELDS` begin and end of a segment with more keys than a tile has
rows, then begin and end of the columns of the other segments, counted from the first tile's first field."""
BLOCK = 32
"""Keys that the kernel adds up at once: the largest slot. More keys take whole blocks."""
NO_KEY = -1
"""In a slot: no key."""


def with_own_keys(cut: Tiles, rows_per_tile: int) -> Int32:
    """The tiles, and behind them the rows whose keys they read.

    Args:
        cut: Tiles of at most `rows_per_tile` rows.
        rows_per_tile: As they were cut.

    Returns:
        int32 [tiles FIELDS + columns]; a column is a row of the forward, or `NO_KEY`.
    """
    count = len(cut.order)
    begins = cut.in_row_order[:, 0].astype(np.int64)
    # A piece is what one tile has of one segment.
    is_edge = np.zeros(len(cut.segment_starts) + 1, bool)
    is_edge[cut.segment_edges] = is_edge[begins] = True
    edges = is_edge.nonzero()[0]
    firsts, ends = edges[:-1], edges[1:]
    starts = cut.segment_starts.take(firsts).astype(np.int64)
    widths = _widths(rows_per_tile).take(ends - starts, mode="clip")
    # The widest slots of a tile first, so that each begins at a multiple of its width.
    tile = begins.searchsorted(firsts, "right")
    order = (tile * (BLOCK + 1) - np.minimum(widths, BLOCK)).argsort(kind="stable")
    of_slots = widths.take(order)
    ends_of_slots = of_slots.cumsum()
    slots = ends_of_slots - of_slots
    used = int(ends_of_slots[-1])
    columns = np.arange(used) + (starts.take(order) - slots).repeat(of_slots)
    columns[columns >= ends.take(order).repeat(of_slots)] = NO_KEY

    table = np.empty(count * FIELDS + used, np.int32)
    table[count * FIELDS :] = columns
    # Only a tile's first segment can have more keys than the tile has rows: it began in an earlier one.
    lead = edges.searchsorted(begins)
    long = widths.take(lead) == 0
    fields = np.empty((count, FIELDS), np.int32)
    fields[:, :TILE_FIELDS] = cut.in_row_order
    fields[:, TILE_FIELDS] = starts.take(lead) * long
    fields[:, TILE_FIELDS + 1] = ends.take(lead) * long
    fields[:, -2] = slots.take(lead) + count * FIELDS
    fields[:-1, -1], fields[-1, -1] = fields[1:, -2], len(table)
    fields.take(cut.order, axis=0, out=table[: count * FIELDS].reshape(count, FIELDS), mode="clip")
    return table


@cache
def _widths(most: int) -> Int64:
    """Columns for 0 to `most` keys, and none for more."""
    keys = np.arange(most + 2)
    slots = 2 ** np.ceil(np.log2(np.maximum(keys, 1))).astype(np.int64)
    widths = np.where(keys > BLOCK, -(-keys // BLOCK) * BLOCK, slots)
    widths[[0, -1]] = 0
    return widths


def most_columns(rows: int) -> int:
    """An upper bound on the columns of the tiles of so many rows.

    A segment of n keys takes fewer than 2 n columns. In the tile where it begins they are rows of the tile. In
    another tile they are at most as many as that has rows, and the tile before it, of the same group, is full.
    """
    return 4 * rows
