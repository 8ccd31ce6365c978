"""Where tiles find the keys of their own segments."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.attention.metadata import Forward
from hiscore.attention.own_keys import BLOCK, FIELDS, NO_KEY, most_columns, with_own_keys
from hiscore.attention.tiles import TILE_FIELDS, cut_into_tiles
from hiscore.scoring.packing import pack, pool_reserve
from hiscore.scoring.prefix_cache import PrefixCache
from tests.support.strategies import Tokens, random_tokens, tokens


def forward_of(calls: list[tuple[int, list[int]]]) -> Forward:
    """One forward of calls of such queries and items."""
    rng = np.random.default_rng(0)
    prompts = [random_tokens(rng, query, items, 100).prompt() for query, items in calls]
    (forward,) = pack(prompts, 30_000, PrefixCache(8, 0, caching=False)).forwards
    return forward


def own_of(forward: Forward, rows_per_tile: int) -> list[tuple[range, range, list[int]]]:
    """Of each tile: its rows, the keys of a long segment, the columns of the others."""
    cut = cut_into_tiles(forward, rows_per_tile)
    table = with_own_keys(cut, rows_per_tile)
    assert table.dtype == np.int32
    count = len(cut.tiles)
    tiles = table[: count * FIELDS].reshape(count, FIELDS)
    np.testing.assert_array_equal(tiles[:, :TILE_FIELDS], cut.tiles)
    begins, ends = tiles[:, -2], tiles[:, -1]
    assert len(table) == count * FIELDS + (ends - begins).sum()
    assert len(table) - count * FIELDS <= most_columns(len(forward.input_ids))
    return [
        (range(first, last), range(begin, end), table[columns:columns_end].tolist())
        for first, last, *_, begin, end, columns, columns_end in tiles.tolist()
    ]


@pytest.mark.parametrize("rows_per_tile", [1, 9, 32, 64])
def test_a_tile_reads_each_key_that_its_rows_see_once_and_no_other(rows_per_tile: int) -> None:
    rng = np.random.default_rng(rows_per_tile)
    for _ in range(30):
        calls = [(int(rng.integers(0, 80)), rng.integers(1, 70, 12).tolist()) for _ in range(3)]
        calls.append((int(rng.integers(1, 40)), rng.integers(1, 6, 30).tolist()))
        forward = forward_of(calls)
        edges = forward.cu_seqlens.tolist()
        start_of = np.repeat(edges[:-1], np.diff(edges))
        for rows, long, columns in own_of(forward, rows_per_tile):
            seen = {key for row in rows for key in range(start_of[row], row + 1)}
            keys = [column for column in columns if column != NO_KEY]
            assert sorted([*long, *keys]) == sorted(seen)
            # A long segment began in an earlier tile, so its rows in this one come first.
            assert not long or (len(long) > rows_per_tile and long.start == start_of[rows.start] < rows.start)
            for place, key in enumerate(columns):
                if key == NO_KEY:
                    continue
                length = sum(1 for other in keys if start_of[other] == start_of[key])
                begin = place - (key - start_of[key])
                width = 1 << (min(length, BLOCK) - 1).bit_length()
                assert begin % width == 0, "a slot is at a multiple of its width"


@pytest.mark.parametrize(
    ("call", "blocks"),
    [
        # A tile of 32 rows holds 7 or 8 items of 5 tokens, in slots of 8: one block for each would be 8.
        ((100, [5] * 100), 2),
        ((50, [2] * 400), 1),
        ((50, [3] * 200), 2),
        ((120, [180] * 10), 1),
    ],
)
def test_short_items_share_blocks(call: tuple[int, list[int]], blocks: int) -> None:
    tiles = own_of(forward_of([call]), 32)
    assert max(-(-len(columns) // BLOCK) for _, _, columns in tiles) == blocks
    # The query's first rows are a tile's only segment: keys behind one another, as in a forward without items.
    assert next(columns for rows, _, columns in tiles if rows == range(32)) == list(range(32))


def table_by_rule(forward: Forward, rows_per_tile: int) -> list[int]:
    """The tiles and the columns behind them, one tile after another."""
    edges, scored = list(pairwise(forward.cu_seqlens.tolist())), set(forward.scored_rows.tolist())
    tiles: list[list[int]] = []
    columns: list[int] = []
    slot_end = 0
    for g in forward.groups:
        slot_begin, slot_end = slot_end, slot_end + len(g.context_slots) + len(g.own_slots)
        context = [slot_begin, slot_end, g.context_rows.start, g.context_rows.stop, len(g.own_slots)]
        for first in range(g.first_row, g.last_row, rows_per_tile):
            last = min(first + rows_per_tile, g.last_row)
            keys = [range(a, min(b, last)) for a, b in edges if a < last and b > first]
            long = next(([own.start, own.stop] for own in keys if len(own) > rows_per_tile), [0, 0])
            at = len(columns)
            short = [own for own in keys if len(own) <= rows_per_tile]
            for own in sorted(short, key=lambda own: -min(width(len(own)), BLOCK)):
                columns += [*own, *[NO_KEY] * (width(len(own)) - len(own))]
            tiles.append([first, last, *context, *long, at, len(columns)])
    tiles.sort(key=lambda tile: scored.isdisjoint(range(tile[0], tile[1])))
    behind = FIELDS * len(tiles)
    return [*(field for *tile, a, b in tiles for field in (*tile, a + behind, b + behind)), *columns]


def width(keys: int) -> int:
    return 1 << (keys - 1).bit_length() if keys <= BLOCK else -(-keys // BLOCK) * BLOCK


@given(
    st.lists(tokens(vocabulary=9, longest=90, most=6), min_size=1, max_size=4),
    st.sampled_from([32, 150, 4_000]),
    st.sampled_from([1, 5, 16, 32, 64]),
    st.booleans(),
)
def test_the_table_is_what_the_rule_says(
    calls: list[Tokens], budget: int, rows_per_tile: int, caching: bool
) -> None:
    reserve = pool_reserve(180, budget)
    cache = PrefixCache(reserve + 8, reserve, caching)
    for _ in range(2):  # the second time with queries that are cached
        for forward in pack([call.prompt() for call in calls], budget, cache).forwards:
            cut = cut_into_tiles(forward, rows_per_tile)
            assert with_own_keys(cut, rows_per_tile).tolist() == table_by_rule(forward, rows_per_tile)
