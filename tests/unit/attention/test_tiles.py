"""Tiles of packed rows."""

import numpy as np

from hiscore.attention.tiles import cut_into_tiles, max_tiles
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
