"""Tiles of packed rows, for attention in both directions."""

import numpy as np
import pytest

from hiscore.attention.tile_inputs import max_tiles
from hiscore.attention.tiles import cut_into_tiles
from tests.support.forwards import forward_of


def test_tiles_name_their_rows_those_with_a_row_to_read_first() -> None:
    found = cut_into_tiles(forward_of([5, 3, 4, 2], [5, 8, 12]), 4)
    assert found.tiles.shape[1] == 2
    assert found.tiles.tolist() == [[4, 8], [8, 12], [12, 14], [0, 4]]
    assert found.scored == 3
    assert found.segment_starts.tolist() == [0] * 5 + [5] * 3 + [8] * 4 + [12] * 2
    assert found.segment_ends.tolist() == [5] * 5 + [8] * 3 + [12] * 4 + [14] * 2
    assert {array.dtype for array in (found.tiles, found.segment_starts, found.segment_ends)} == {
        np.dtype(np.int32)
    }


@pytest.mark.parametrize(("scored", "tiles"), [([0], 1), ([3], 1), ([4], 1), ([3, 4], 2), ([7], 1), ([8], 1)])
def test_a_scored_row_marks_only_the_tile_that_it_is_in(scored: list[int], tiles: int) -> None:
    found = cut_into_tiles(forward_of([9], scored), 4)
    assert found.scored == tiles
    first = [row for begin, end in found.tiles[:tiles].tolist() for row in range(begin, end)]
    assert set(scored) <= set(first)


@pytest.mark.parametrize("rows_per_tile", [1, 2, 3, 64])
def test_tiles_cover_every_row_once(rows_per_tile: int) -> None:
    rng = np.random.default_rng(rows_per_tile)
    for _ in range(50):
        lengths = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        found = cut_into_tiles(forward_of(lengths, [0]), rows_per_tile)
        covered = [row for begin, end in found.tiles.tolist() for row in range(begin, end)]
        assert sorted(covered) == list(range(sum(lengths)))
        assert len(found.tiles) <= max_tiles(sum(lengths), 1, rows_per_tile)
        assert (found.tiles[:, 1] - found.tiles[:, 0]).max() <= rows_per_tile
