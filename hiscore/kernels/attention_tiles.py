"""Input of packed attention: a forward's tiles, and the places where a tile finds the keys of its own segments.

A tile is a run of consecutive rows of one group, which share a context. The device cuts a forward into tiles,
because it would wait longer for the host to do so than for all else that the host packs.

A tile of short items reads the keys of all of them a block at a time. Within its block a segment's keys fill a
*slot*: as many columns as the next power of two, at a multiple of that. A row takes no weight from the columns of
other slots, and adding zeros is exact. So the terms of a row's sums meet in the same order wherever in a block the
slot is: products and reductions over columns go one after another, or by powers of two. No bit of a row depends on
the tile's other segments, or on whether the block is its segment's alone.
"""

import triton
import triton.language as tl


@triton.jit
def attention_tiles(
    described, segment_starts, tiles, scored_tiles, columns,
    HEADER: tl.constexpr, GROUP_FIELDS: tl.constexpr, TILE_FIELDS: tl.constexpr, TILE_ROWS: tl.constexpr,
    PADDED_ROWS: tl.constexpr, BLOCK: tl.constexpr, NO_KEY: tl.constexpr, FIRST_STEP: tl.constexpr,
    SCORED_BLOCK: tl.constexpr,
):  # fmt: skip
    """Cut the groups of a forward into tiles. Grid: any.

    In: described int32, see `attention.tile_inputs`.
    Out:
        segment_starts: int32 [T]: the first row of each row's segment.
        tiles, scored_tiles: int32 [tiles, TILE_FIELDS], the latter for the last layer: empty where none is scored.
        columns: int32 [4 T]: rows whose keys tiles read, or NO_KEY.

    Args:
        TILE_ROWS: Rows of a tile, at most. PADDED_ROWS: A power of two, at least as many.
        BLOCK: Keys that attention adds up at once: the widest slot. More keys take whole blocks.
        FIRST_STEP: A power of two, at least half of the segments.
    """
    tl.static_assert(BLOCK == 32)
    count, groups = tl.load(described), tl.load(described + 1)
    segments, scored_count = tl.load(described + 2), tl.load(described + 3)
    edges = described + HEADER + GROUP_FIELDS * groups
    scored = edges + segments + 1
    n = tl.arange(0, PADDED_ROWS)
    for tile in range(tl.program_id(0), count, tl.num_programs(0)):
        # The last group whose first tile is not behind this one.
        low, high = groups * 0, groups
        while low + 1 < high:
            middle = (low + high) // 2
            is_later = tl.load(described + HEADER + GROUP_FIELDS * middle) > tile
            low, high = tl.where(is_later, low, middle), tl.where(is_later, middle, high)
        group = described + HEADER + GROUP_FIELDS * low
        begin = tl.load(group + 1) + (tile - tl.load(group)) * TILE_ROWS
        end = tl.minimum(begin + TILE_ROWS, tl.load(group + 2))

        # The last segment that does not begin behind a row.
        row = begin + n
        valid = row < end
        segment = n * 0
        step = segments * 0 + FIRST_STEP
        while step > 0:
            later = segment + step
            there = valid & (later < segments)
            at = tl.load(edges + later, mask=there, other=0)
            segment = tl.where(there & (at <= row), later, segment)
            step = step // 2
        first_key = tl.load(edges + segment, mask=valid, other=0)
        key_end = tl.minimum(tl.load(edges + segment + 1, mask=valid, other=0), end)
        tl.store(segment_starts + row, first_key, mask=valid)

        # Each segment by its first row in this tile. One with more keys than a tile has rows began in an earlier
        # tile; its keys need no columns.
        is_first = valid & ((n == 0) | (first_key == row))
        keys = tl.where(is_first, key_end - first_key, 0)
        slot = tl.where(keys > 0, 1, 0)
        for power in tl.static_range(1, 6):
            slot = tl.where(keys > (1 << power) // 2, 1 << power, slot)
        slot = tl.where(keys > BLOCK, (keys + BLOCK - 1) // BLOCK * BLOCK, slot)
        slot = tl.where(keys > TILE_ROWS, 0, slot)
        # The widest slots first, so that each begins at a multiple of its width.
        rank = tl.minimum(slot, BLOCK) * PADDED_ROWS - n
        before = rank[None, :] > rank[:, None]
        place = tl.sum(tl.where(before, slot[None, :], 0), axis=1)
        used = tl.sum(slot, axis=0)
        lead_begin = tl.sum(tl.where(n == 0, first_key, 0), axis=0)
        lead_end = tl.sum(tl.where(n == 0, key_end, 0), axis=0)
        # A tile has 4 columns for each of its rows. A slot of n keys has fewer than 2 n, so its own rows need the
        # first half of them. A segment that began in an earlier tile may need 2 TILE_ROWS more: the second half of
        # the tile before, which is full.
        columns_begin = 4 * begin - tl.where(lead_begin < begin, 2 * TILE_ROWS, 0)
        k = tl.arange(0, PADDED_ROWS)
        key = first_key[:, None] + k[None, :]
        tl.store(
            columns + columns_begin + place[:, None] + k[None, :],
            tl.where(key < key_end[:, None], key, NO_KEY),
            mask=k[None, :] < slot[:, None],
        )

        is_long = lead_end - lead_begin > TILE_ROWS
        is_scored = scored_count < 0
        for first in range(0, scored_count, SCORED_BLOCK):
            at = first + tl.arange(0, SCORED_BLOCK)
            read = tl.load(scored + at, mask=at < scored_count, other=-1)
            is_scored = is_scored | (tl.max(((read >= begin) & (read < end)).to(tl.int32), axis=0) > 0)
        field = tl.arange(0, 16)
        fields = tl.load(group + 1 + field, mask=(field >= 2) & (field < GROUP_FIELDS - 1), other=0)
        fields = tl.where(field == 0, begin, fields)
        fields = tl.where(field == 1, end, fields)
        fields = tl.where((field == TILE_FIELDS - 4) & is_long, lead_begin, fields)
        fields = tl.where((field == TILE_FIELDS - 3) & is_long, lead_end, fields)
        fields = tl.where(field == TILE_FIELDS - 2, columns_begin, fields)
        fields = tl.where(field == TILE_FIELDS - 1, columns_begin + used, fields)
        to = tile * TILE_FIELDS + field
        tl.store(tiles + to, fields, mask=field < TILE_FIELDS)
        tl.store(scored_tiles + to, tl.where(is_scored, fields, 0), mask=field < TILE_FIELDS)
