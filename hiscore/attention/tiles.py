"""Cuts packed rows into tiles for attention in both directions; NumPy only.

A tile is a run of consecutive rows of any segments. With a context, the device cuts (`kernels.attention_tiles`).
"""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int32
from hiscore.attention.metadata import Forward


class Tiles(NamedTuple):
    """The attention kernel's inputs other than the rows; all int32."""

    segment_edges: Int32  # [segments + 1]: where each segment begins, and the last one ends
    tiles: Int32
    """[tiles, 2]: begin and end of the rows of each; those that hold a row that is read come first."""
    scored: int
    """Scored rows: all that the last layer computes."""

    @property
    def segment_starts(self) -> Int32:
        """[T]: first row of each row's segment."""
        edges = self.segment_edges
        return edges[:-1].repeat(edges[1:] - edges[:-1])

    @property
    def segment_ends(self) -> Int32:
        """[T]: one past the last row of each row's segment."""
        edges = self.segment_edges
        return edges[1:].repeat(edges[1:] - edges[:-1])


def cut_into_tiles(forward: Forward, rows_per_tile: int) -> Tiles:
    """Cut a forward into tiles of at most `rows_per_tile` rows."""
    rows = len(forward.input_ids)
    begins = np.arange(0, rows, rows_per_tile, dtype=np.int32)
    tiles = np.stack((begins, np.minimum(begins + rows_per_tile, rows)), axis=1, dtype=np.int32)
    is_unscored = np.ones(len(tiles), bool)
    is_unscored[forward.scored_rows // rows_per_tile] = False
    order = is_unscored.argsort(kind="stable")
    return Tiles(forward.cu_seqlens, tiles[order], len(tiles) - np.count_nonzero(is_unscored))
