"""Plan of the rows of a prefill that select, cut into tiles and passes: arithmetic on NumPy alone."""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32, Int64

ROWS = 16
"""Rows of a tile: a block of index keys is read once for so many."""


@dataclass(frozen=True)
class NewRows:
    """The new rows of one sequence, its last ones; `length` counts all its tokens so far."""

    rows: int
    length: int


@dataclass(frozen=True)
class Pass:
    """Rows, among those that select, that are scored and selected for at once; the longest sees `width` tokens.

    `tiles` are int64 [tiles, 5], see `kernels.indexer_prefill.score_tiles`.
    """

    rows: slice
    width: int
    tiles: Int64


@dataclass(frozen=True)
class PrefillPlan:
    """Plan of the S rows that select: among the slots of all sequences, in turn, a row's begins at `starts`.

    `starts` are int64 [S], and `seen`, int32 [S], are a row's tokens.
    """

    starts: Int64
    seen: Int32
    passes: list[Pass]


def plan_prefill(sequences: list[NewRows], max_scores: int) -> PrefillPlan:
    """Plan a forward of sequences, in order, of which every row selects.

    A pass has `max_scores` scores at most; a tile that has more is a pass of its own.
    """
    starts: list[int] = []
    seen: list[int] = []
    tiles: list[list[int]] = []
    slot = 0
    for each in sequences:
        row, before = len(seen), each.length - each.rows
        for at in range(0, each.rows, ROWS):
            tiles.append([row + at, min(ROWS, each.rows - at), before + at + 1, slot, row + at])
        starts += [slot] * each.rows
        seen += range(before + 1, each.length + 1)
        slot += each.length
    return PrefillPlan(np.array(starts, np.int64), np.array(seen, np.int32), _passes(tiles, max_scores))


def plan_full(sequences: list[NewRows], begins: list[int], rows: int) -> Int32:
    """Tiles of at most `rows` rows that attend to all earlier tokens, those with most tokens first.

    Each sequence begins at its row of `begins`. Tiles are int32 [tiles, 4], see `full_attention.attend_full`.
    """
    tiles: list[list[int]] = []
    token = 0
    for each, row in zip(sequences, begins, strict=True):
        before = each.length - each.rows
        for at in range(0, each.rows, rows):
            tiles.append([row + at, min(rows, each.rows - at), before + at, token])
        token += each.length
    return np.array(sorted(tiles, key=lambda tile: -tile[2]), dtype=np.int32)


def _passes(tiles: list[list[int]], max_scores: int) -> list[Pass]:
    passes: list[Pass] = []
    taken: list[list[int]] = []
    rows = width = 0
    for tile in tiles:
        _, more, length, _, _ = tile
        wider = max(width, length + more - 1)
        if taken and (rows + more) * wider > max_scores:
            passes.append(_pass(taken, rows, width))
            taken, rows, wider = [], 0, length + more - 1
        taken.append(tile)
        rows, width = rows + more, wider
    if taken:
        passes.append(_pass(taken, rows, width))
    return passes


def _pass(tiles: list[list[int]], rows: int, width: int) -> Pass:
    first = tiles[0][-1]
    # A row's place among the scores counts from the pass's first.
    return Pass(slice(first, first + rows), width, np.array(tiles, dtype=np.int64) - [0, 0, 0, 0, first])
