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
    count = len(cut.tiles)
    in_row_order = cut.tiles[:, 0].argsort()
    begins, ends = cut.tiles[:, 0][in_row_order], cut.tiles[:, 1][in_row_order]
    # A segment's first row in each of its tiles.
    is_first = cut.segment_starts == np.arange(len(cut.segment_starts))
    is_first[begins] = True
    first = is_first.nonzero()[0]
    of_tile = first.searchsorted(begins)
    tile = np.zeros(len(first), np.int64)
    tile[of_tile[1:]] = 1
    tile = tile.cumsum()
    starts = cut.segment_starts[first]
    keys = np.minimum(cut.segment_ends[first], ends[tile]) - starts

    own = np.zeros((count, FIELDS - TILE_FIELDS), np.int64)
    # Only the first segment of a tile can have so many: it began in an earlier one.
    long = keys > rows_per_tile
    own[tile[long], 0], own[tile[long], 1] = starts[long], (starts + keys)[long]
    keys[long] = 0
    widths = _widths(rows_per_tile)[keys]
    # The widest slots of a tile first, so that each begins at a multiple of its width.
    order = (tile * (BLOCK + 1) - np.minimum(widths, BLOCK)).argsort(kind="stable")
    starts, keys, widths = starts[order], keys[order], widths[order]
    ends_of_slots, before = widths.cumsum(), keys.cumsum() - keys
    slots = ends_of_slots - widths
    columns = np.full(ends_of_slots[-1], NO_KEY, np.int32)
    which = np.arange(before[-1] + keys[-1])
    columns[which + (slots - before).repeat(keys)] = which + (starts - before).repeat(keys)
    own[:, 2] = slots[of_tile]
    own[:-1, 3], own[-1, 3] = own[1:, 2], len(columns)
    own[:, 2:] += count * FIELDS

    table = np.empty(count * FIELDS + len(columns), np.int32)
    table[count * FIELDS :] = columns
    fields = table[: count * FIELDS].reshape(count, FIELDS)
    fields[:, :TILE_FIELDS] = cut.tiles
    fields[in_row_order, TILE_FIELDS:] = own
    return table


@cache
def _widths(most: int) -> Int64:
    """Columns for 0 to `most` keys."""
    keys = np.arange(most + 1)
    slots = 2 ** np.ceil(np.log2(np.maximum(keys, 1))).astype(np.int64)
    slots[0] = 0
    return np.where(keys > BLOCK, -(-keys // BLOCK) * BLOCK, slots)


def most_columns(rows: int) -> int:
    """An upper bound on the columns of the tiles of so many rows.

    A segment of n keys takes fewer than 2 n columns. In the tile where it begins they are rows of the tile. In
    another tile they are at most as many as that has rows, and the tile before it, of the same group, is full.
    """
    return 4 * rows
