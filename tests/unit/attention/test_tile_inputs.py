"""What a device is told of a forward that it cuts into tiles."""

from itertools import pairwise

import numpy as np
import pytest

from hiscore.attention.metadata import SegmentGroup
from hiscore.attention.tile_inputs import (
    ALL_SCORED,
    GROUP_FIELDS,
    HEADER,
    describe,
    max_tiles,
    most_described,
)
from tests.support.forwards import forward_of


def slots(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_groups_are_described_with_their_first_tiles_and_contexts() -> None:
    """A query of 5 rows, then items of 3 and 4 that see it; the last 2 rows of an item that began earlier."""
    groups = [
        SegmentGroup(0, 5, slots(), slice(0, 0)),
        SegmentGroup(5, 12, slots(70, 71, 72), slice(0, 5)),
        SegmentGroup(12, 14, slots(90), slice(0, 0), slots(33)),
    ]
    found = describe(forward_of([5, 3, 4, 2], [13, 7, 11], groups), 4)
    assert found.tiles == 2 + 2 + 1
    assert found.context_slots.tolist() == [70, 71, 72, 90, 33]
    # First tile; rows, slots and rows of the context; own slots.
    table = [[0, 0, 5, 0, 0, 0, 0, 0], [2, 5, 12, 0, 3, 0, 5, 0], [4, 12, 14, 3, 5, 0, 0, 1]]
    into = np.zeros(found.size + 3, np.int32)
    found.write(into, np.array([13, 7, 11], np.int32))
    assert into.tolist() == [5, 3, 4, 3, *table[0], *table[1], *table[2], 0, 5, 8, 12, 14, 13, 7, 11]
    assert len(into) == HEADER + 3 * GROUP_FIELDS + 5 + 3
    found.write(into[:-3], np.empty(0, np.int32))
    assert into[3] == ALL_SCORED
    assert {found.groups.dtype, found.edges.dtype, found.context_slots.dtype} == {np.dtype(np.int32)}


@pytest.mark.parametrize("rows_per_tile", [1, 2, 3, 64])
def test_no_rows_in_any_groups_take_more_than_the_bounds(rows_per_tile: int) -> None:
    rng = np.random.default_rng(rows_per_tile)
    for _ in range(50):
        lengths = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        edges = np.cumsum([0, *lengths]).tolist()
        groups = [SegmentGroup(a, b, slots(), slice(0, 0)) for a, b in pairwise(edges)]
        found = describe(forward_of(lengths, [0], groups), rows_per_tile)
        assert found.tiles == sum(-(-n // rows_per_tile) for n in lengths)
        assert found.tiles <= max_tiles(edges[-1], len(groups), rows_per_tile)
        assert found.size <= most_described(edges[-1])
    # They are reached: by a group of one row and one of whole tiles and a row, and by rows that are groups.
    one_more = [SegmentGroup(0, 1, slots(), slice(0, 0)), SegmentGroup(1, 6, slots(), slice(0, 0))]
    assert describe(forward_of([1, 5], [0], one_more), 4).tiles == max_tiles(6, 2, 4) == 3
    single = [SegmentGroup(row, row + 1, slots(), slice(0, 0)) for row in range(6)]
    assert describe(forward_of([1] * 6, [0], single), 4).size == most_described(6)
