"""Splitting the input into shards, the same in every run: each is one Ray task and one output file."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class FileScan:
    """The facts of an input file after reading it once.

    Args:
        name: Path below the input directory.
        boundaries: Where each shard begins, then where the last one ends: byte offsets in a JSONL file, row
            numbers in a Parquet file.
    """

    name: str
    size: int
    sha256: str
    rows: int
    boundaries: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of one file.

    Args:
        file: Index of the file among the inputs.
        start: First boundary: byte offset or row number.
        first_row: Number of its first row, counted over all files.
    """

    index: int
    file: int
    start: int
    stop: int
    first_row: int
    rows: int


def plan_shards(files: Sequence[FileScan], rows_per_shard: int) -> list[Shard]:
    """List the shards in row order; all have ``rows_per_shard`` rows, except the last of each file."""
    shards: list[Shard] = []
    first_row = 0
    for number, file in enumerate(files):
        left = file.rows
        for start, stop in pairwise(file.boundaries):
            rows = min(rows_per_shard, left)
            shards.append(Shard(len(shards), number, start, stop, first_row, rows))
            first_row += rows
            left -= rows
    return shards
