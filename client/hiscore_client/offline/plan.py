"""The input cut into shards, the same ones in every run: each is one task and one output file."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FileScan:
    """What a run knows of an input file after reading it once.

    cuts: where its shards begin, and where the last one ends: bytes of a JSONL file, rows of a Parquet file.
    """

    name: str
    size: int
    sha256: str
    rows: int
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """Some rows of one file.

    index: the shard's among all; file: the file's among the inputs; start and stop: its cuts; first_row: its
    first row's number, counted through all files.
    """

    index: int
    file: int
    start: int
    stop: int
    first_row: int
    rows: int


def plan(files: Sequence[FileScan], rows_per_shard: int) -> list[Shard]:
    """Shards in the order of the rows: all of a file have rows_per_shard rows, but for its last one."""
    shards: list[Shard] = []
    first_row = 0
    for number, file in enumerate(files):
        left = file.rows
        for start, stop in zip(file.cuts, file.cuts[1:], strict=False):
            rows = min(rows_per_shard, left)
            shards.append(Shard(len(shards), number, start, stop, first_row, rows))
            first_row += rows
            left -= rows
    return shards
