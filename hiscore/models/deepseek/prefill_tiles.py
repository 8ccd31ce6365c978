"""Plan of the rows of a prefill that select, cut into tiles and passes: arithmetic on NumPy alone."""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32, Int64

ROWS = 16
"""Rows of a tile: a block of index keys is read once for so many."""


@dataclass(frozen=True)
class NewRows:
    """The new rows of one sequence, its last ones; `length` counts all its tokens so far.

    A `full` sequence's rows attend to all tokens instead of the indexer's selection.
    """

    rows: int
    length: int
    full: bool


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
    """Lists of a forward of T rows: those of the S rows that select, then the slots of all sequences.

    A row's list begins at `begins`, int64 [T], and has `counts`, int32 [T]. Of a row that selects, the sequence
    begins among the slots at `starts`, int64 [S], and `seen`, int32 [S], are its tokens.
    """

    begins: Int64
    counts: Int32
    starts: Int64
    seen: Int32
    passes: list[Pass]


def plan_prefill(sequences: list[NewRows], top_k: int, max_scores: int) -> PrefillPlan:
    """Plan a forward of sequences, in order; a row that sees no more than `top_k` tokens attends to all of them.

    A pass has `max_scores` scores at most; a tile that has more is a pass of its own.
    """
    begins: list[int] = []
    counts: list[int] = []
    starts: list[int] = []
    seen: list[int] = []
    tiles: list[list[int]] = []
    row = slot = 0
    for each in sequences:
        for at in range(each.rows):
            length = each.length - each.rows + at + 1
            selects = length > top_k and not each.full
            # Beginnings among the slots are below 0 until it is known where the slots begin.
            begins.append(len(seen) * top_k if selects else -1 - slot)
            counts.append(top_k if selects else length)
            if not selects:
                continue
            if tiles and tiles[-1][0] + tiles[-1][1] == row + at and tiles[-1][1] < ROWS and at:
                tiles[-1][1] += 1
            else:
                tiles.append([row + at, 1, length, slot, len(seen)])
            starts.append(slot)
            seen.append(length)
        row, slot = row + each.rows, slot + each.length
    first_slot = len(seen) * top_k
    begun = np.array(begins, dtype=np.int64)
    return PrefillPlan(
        begins=np.where(begun < 0, first_slot - 1 - begun, begun),
        counts=np.array(counts, dtype=np.int32),
        starts=np.array(starts, dtype=np.int64),
        seen=np.array(seen, dtype=np.int32),
        passes=_passes(tiles, max_scores),
    )


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
