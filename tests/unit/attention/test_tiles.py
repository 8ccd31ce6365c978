"""Tiles of packed rows."""

from itertools import pairwise

import numpy as np
import pytest

from hiscore.attention.metadata import NO_SLOT, Forward, Group
from hiscore.attention.tiles import TILE_FIELDS, cut_into_tiles, max_tiles
from hiscore.scoring.packing import pack
from hiscore.scoring.prefix_cache import PrefixCache
from tests.support.strategies import random_tokens


def test_tiles_cover_every_row_once_and_hardly_exceed_what_rows_need() -> None:
    calls = [random_tokens(np.random.default_rng(2), 120, [2] * 400, 100).prompt() for _ in range(3)]
    (forward,) = pack(calls, 16_384, PrefixCache(8, 0, caching=False)).forwards
    cut = cut_into_tiles(forward, 64)
    covered = np.concatenate([np.arange(first, last) for first, last in cut.tiles[:, :2]])
    np.testing.assert_array_equal(np.sort(covered), np.arange(len(forward.input_ids)))
    scored = set(forward.scored_rows)
    holds = [bool(scored & set(range(first, last))) for first, last in cut.tiles[:, :2]]
    assert holds == [True] * cut.scored + [False] * (len(holds) - cut.scored)
    assert len(cut.tiles) <= max_tiles(len(forward.input_ids), len(forward.groups), 64)
    # 1,200 items of two tokens: a tile for each would be 1,203.
    assert len(cut.tiles) == 3 * (2 + 13)


def forward_of(lengths: list[int], groups: list[Group], scored: list[int]) -> Forward:
    """A forward of segments of these lengths."""
    edges = np.cumsum([0, *lengths], dtype=np.int32)
    rows = int(edges[-1])
    return Forward(
        input_ids=np.zeros(rows, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        cu_seqlens=edges,
        groups=tuple(groups),
        slot_mapping=np.full(rows, NO_SLOT, np.int64),
        scored_rows=np.array(scored, np.int64),
        scored_items=np.arange(len(scored), dtype=np.int64),
    )


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_tile_names_its_rows_and_its_group_s_context() -> None:
    """A query of 5 rows, then items of 3 and 4 that see it; the last 2 rows of an item that began earlier."""
    groups = [
        Group(0, 5, slots(), slice(0, 0)),
        Group(5, 12, slots(70, 71, 72), slice(0, 5)),
        Group(12, 14, slots(90), slice(0, 0), slots(33)),
    ]
    cut = cut_into_tiles(forward_of([5, 3, 4, 2], groups, [13, 7, 11]), 4)
    assert TILE_FIELDS == cut.tiles.shape[1] == 7
    assert cut.tiles.tolist() == [
        # With scored rows: 7, 11 and 13. Fields: rows, slots and rows of the context, own slots.
        [5, 9, 0, 3, 0, 5, 0],
        [9, 12, 0, 3, 0, 5, 0],
        [12, 14, 3, 5, 0, 0, 1],
        [0, 4, 0, 0, 0, 0, 0],
        [4, 5, 0, 0, 0, 0, 0],
    ]
    assert cut.scored == 3
    assert cut.context_slots.tolist() == [70, 71, 72, 90, 33]
    assert cut.segment_starts.tolist() == [0] * 5 + [5] * 3 + [8] * 4 + [12] * 2
    assert cut.segment_ends.tolist() == [5] * 5 + [8] * 3 + [12] * 4 + [14] * 2
    assert {array.dtype for array in (cut.tiles, cut.context_slots, cut.segment_starts)} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize(("scored", "tiles"), [([0], 1), ([3], 1), ([4], 1), ([3, 4], 2), ([7], 1), ([8], 1)])
def test_a_scored_row_marks_only_the_tile_that_it_is_in(scored: list[int], tiles: int) -> None:
    cut = cut_into_tiles(forward_of([9], [Group(0, 9, slots(), slice(0, 0))], scored), 4)
    assert cut.scored == tiles
    first = [row for begin, end, *_ in cut.tiles[:tiles].tolist() for row in range(begin, end)]
    assert set(scored) <= set(first)


@pytest.mark.parametrize("rows_per_tile", [1, 2, 3, 64])
def test_no_rows_in_any_groups_take_more_tiles_than_the_bound(rows_per_tile: int) -> None:
    rng = np.random.default_rng(rows_per_tile)
    for _ in range(50):
        lengths = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        edges = np.cumsum([0, *lengths]).tolist()
        groups = [Group(a, b, slots(), slice(0, 0)) for a, b in pairwise(edges)]
        cut = cut_into_tiles(forward_of(lengths, groups, [0]), rows_per_tile)
        assert len(cut.tiles) == sum(-(-n // rows_per_tile) for n in lengths)
        assert len(cut.tiles) <= max_tiles(edges[-1], len(groups), rows_per_tile)
        assert (cut.tiles[:, 1] - cut.tiles[:, 0]).max() <= rows_per_tile
    # The bound is reached: a group of one row, and one of whole tiles and a row.
    assert max_tiles(1 + 5, 2, 4) == 3
    one_more = [Group(0, 1, slots(), slice(0, 0)), Group(1, 6, slots(), slice(0, 0))]
    assert len(cut_into_tiles(forward_of([1, 5], one_more, [0]), 4).tiles) == 3
