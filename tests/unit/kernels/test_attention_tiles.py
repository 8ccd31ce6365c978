"""The tiles that a device cuts a forward into, and where they find the keys of their own segments."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward, SegmentGroup
from hiscore.attention.packed_triton import SCORED_BLOCK, TritonAttention
from hiscore.attention.tile_inputs import BLOCK, NO_KEY, TILE_FIELDS, describe, max_tiles, most_columns
from hiscore.prefill.input_layout import MAX_TAIL_ROWS, NO_ROWS, pad_scored
from hiscore.scoring.packing.packing import pack, pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from tests.support.forwards import forward_of
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiers import first_of
from tests.support.tiles import prepare

Tile = tuple[range, list[int], range, list[int]]
"""Its rows, its context, the keys of a long segment, the columns of the others."""


def packed(calls: list[tuple[int, list[int]]]) -> Forward:
    rng = np.random.default_rng(0)
    prompts = [random_tokens(rng, query, items, 100).prompt() for query, items in calls]
    (forward,) = pack(prompts, 30_000, QueryCache(8, 0, caching=False)).forwards
    return forward


def attention_with(rows_per_tile: int) -> TritonAttention:
    """Attention whose tiles have so many rows: 64, divided by the heads of a group."""
    heads = 64 // rows_per_tile
    shape = AttentionShape(heads, 1, 16, 0.4, None, (None, None))
    attention = TritonAttention(shape, torch.float16, multiprocessors=3)
    assert attention.rows_per_tile == rows_per_tile
    return attention


def cut(forward: Forward, rows_per_tile: int, scored: np.ndarray = NO_ROWS) -> tuple[list[Tile], list[Tile]]:
    attention = attention_with(rows_per_tile)
    inputs = prepare(attention, forward, scored=scored)
    tables, rows = inputs.tables, len(forward.input_ids)
    count = describe(forward, rows_per_tile).tiles
    assert count <= max_tiles(rows, len(forward.groups), rows_per_tile)
    starts = np.repeat(forward.cu_seqlens[:-1], np.diff(forward.cu_seqlens))
    assert tables.segment_starts.tolist() == starts.tolist()
    columns = tables.columns.tolist()
    assert max(end for *_, end in tables.tiles[:count].tolist()) <= most_columns(rows)
    found: list[list[Tile]] = []
    for table in (tables.tiles, tables.scored_tiles):
        fields = table[:count].tolist()
        assert all(
            len(each) == TILE_FIELDS and (not any(each) or 0 <= each[9] <= each[10]) for each in fields
        )
        found.append(
            [(range(*each[:2]), each[2:7], range(*each[7:9]), columns[each[9] : each[10]]) for each in fields]
        )
    # No tile's columns are another's.
    spans = sorted((begin, end) for *_, begin, end in tables.tiles[:count].tolist() if begin < end)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    return found[0], found[1]


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_tile", first_of(32, 1, 9, 21, 64))
def test_a_tile_reads_each_key_that_its_rows_see_once_and_no_other(rows_per_tile: int) -> None:
    rng = np.random.default_rng(rows_per_tile)
    for _ in range(2):
        calls = [(int(rng.integers(0, 80)), rng.integers(1, 70, 12).tolist()) for _ in range(3)]
        calls.append((int(rng.integers(1, 40)), rng.integers(1, 6, 30).tolist()))
        forward = packed(calls[-2:] if rows_per_tile == 1 else calls)
        edges = forward.cu_seqlens.tolist()
        start_of = np.repeat(edges[:-1], np.diff(edges))
        tiles, _ = cut(forward, rows_per_tile)
        assert [row for rows, *_ in tiles for row in rows] == list(range(edges[-1]))
        for rows, _, long, columns in tiles:
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


@pytest.mark.slow
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
    tiles, _ = cut(packed([call]), 32)
    assert max(-(-len(columns) // BLOCK) for *_, columns in tiles) == blocks
    # The query's first rows are a tile's only segment: keys behind one another, as in a forward without items.
    assert tiles[0][0] == range(32)
    assert tiles[0][3] == list(range(32))
    # Short items fill tiles as well as long ones.
    query, items = call
    assert len(tiles) == -(-query // 32) + -(-sum(items) // 32)


def tiles_by_rule(forward: Forward, rows_per_tile: int) -> list[Tile]:
    edges = list(pairwise(forward.cu_seqlens.tolist()))
    tiles: list[Tile] = []
    slot_end = 0
    for g in forward.groups:
        slot_begin, slot_end = slot_end, slot_end + len(g.context_slots) + len(g.own_slots)
        context = [slot_begin, slot_end, g.context_rows.start, g.context_rows.stop, len(g.own_slots)]
        for first in range(g.first_row, g.last_row, rows_per_tile):
            last = min(first + rows_per_tile, g.last_row)
            keys = [range(a, min(b, last)) for a, b in edges if a < last and b > first]
            long = next((own for own in keys if len(own) > rows_per_tile), range(0))
            columns: list[int] = []
            short = [own for own in keys if len(own) <= rows_per_tile]
            for own in sorted(short, key=lambda own: -min(width(len(own)), BLOCK)):
                columns += [*own, *[NO_KEY] * (width(len(own)) - len(own))]
            tiles.append((range(first, last), context, long, columns))
    return tiles


def width(keys: int) -> int:
    return 1 << (keys - 1).bit_length() if keys <= BLOCK else -(-keys // BLOCK) * BLOCK


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.lists(tokens(vocabulary=9, longest=90, most=6), min_size=1, max_size=4),
    st.sampled_from([32, 150, 4_000]),
    st.sampled_from([4, 9, 21, 32, 64]),
    st.booleans(),
)
@pytest.mark.exhaustive
def test_tiles_follow_the_rule(calls: list[Tokens], budget: int, rows_per_tile: int, caching: bool) -> None:
    reserve = pool_reserve(180, budget)
    cache = QueryCache(reserve + 8, reserve, caching)
    for _ in range(2):  # the second time with queries that are cached
        for forward in pack([call.prompt() for call in calls], budget, cache).forwards:
            expected = tiles_by_rule(forward, rows_per_tile)
            scored = set(forward.scored_rows.tolist())
            tiles, last_layer = cut(forward, rows_per_tile, pad_scored(forward.scored_rows))
            assert tiles == expected
            nothing = (range(0), [0] * 5, range(0), [])
            # The padding of the scored rows reads row 0.
            read = scored | {0} if scored else scored
            assert last_layer == [nothing if read.isdisjoint(tile[0]) else tile for tile in tiles]


def test_rows_to_read_that_are_too_many_to_be_listed_are_in_every_tile() -> None:
    forward = packed([(9, [1] * (MAX_TAIL_ROWS + 1))])
    tiles, last_layer = cut(forward, 32)
    assert tiles == last_layer == tiles_by_rule(forward, 32)


def test_a_segment_may_need_more_columns_than_its_last_tile_has() -> None:
    """21 rows a tile, and a segment of 17 to 21 keys takes 32 columns: where it ends in a tile of one row, say."""
    none = np.empty(0, np.int64)
    for lengths in ([42, 5, 17, 22], [20], [62, 20], [40, 3, 21]):
        last = sum(lengths)
        groups = [SegmentGroup(a, b, none, slice(0, 0)) for a, b in ((0, last), (last, last + 21))]
        forward = forward_of([*lengths, 21], [], groups)
        tiles, last_layer = cut(forward, 21)
        assert tiles == tiles_by_rule(forward, 21)
        assert not any(rows for rows, *_ in last_layer)


@pytest.mark.slow
def test_every_row_to_read_is_found_beyond_the_first_that_are_compared() -> None:
    forward = packed([(150, [1, 2] * 150)])
    scored = pad_scored(forward.scored_rows)
    assert SCORED_BLOCK < len(forward.scored_rows) < len(scored) <= MAX_TAIL_ROWS
    tiles, last_layer = cut(forward, 32, scored)
    # The query's first tile has row 0, which the padding reads.
    assert [bool(tile[0]) for tile in last_layer] == [
        tile[0].start == 0 or tile[0].start >= 150 for tile in tiles
    ]
