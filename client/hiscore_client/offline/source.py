"""The input's files: which they are, where their shards begin, and the rows of one shard."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hiscore_client.cli.common import UNDECODABLE
from hiscore_client.errors import InvalidRequest
from hiscore_client.offline.job import Task
from hiscore_client.offline.plan import FileScan, Shard
from hiscore_client.offline.rows import InputRow, read_row

SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# Bytes, and rows, held at once while reading.
PIECE = 2**20
BATCH = 4_096


def find_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or all files below a directory by name; those that begin with . or _ are passed over.

    Raises:
        InvalidRequest: there is none, one is of a kind that cannot be read, or there are two kinds.
    """
    files = [path]
    if path.is_dir():
        below = (file for file in path.rglob("*") if file.is_file())
        files = sorted(file for file in below if not hidden(file.relative_to(path)))
    elif not path.is_file():
        raise InvalidRequest(f"the input '{path}' is no file and no directory")
    unknown = [file.name for file in files if file.suffix not in SUFFIXES]
    if unknown:
        raise InvalidRequest(f"the input file '{unknown[0]}' must end in one of {', '.join(SUFFIXES)}")
    if len({SUFFIXES[file.suffix] for file in files}) != 1:
        raise InvalidRequest(f"'{path}' must hold files of one kind, Parquet or JSON Lines")
    return tuple(files)


def hidden(path: Path) -> bool:
    """Whether a name in the path begins with . or _: what Spark and others write beside their data."""
    return any(part.startswith((".", "_")) for part in path.parts)


def scan(path: Path, name: str, task: Task) -> FileScan:
    """Read a file once. name: what the manifest calls it.

    Raises:
        InvalidRequest: it cannot be read, or lacks a column.
    """
    digest = hashlib.sha256()
    cuts: list[int] = []
    try:
        if SUFFIXES[path.suffix] == "parquet":
            rows = _parquet_rows(path, task)
            cuts = [*range(0, rows, task.rows_per_shard), rows]
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    digest.update(piece)
            return FileScan(name, path.stat().st_size, digest.hexdigest(), rows, tuple(cuts))
        rows = place = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    if rows % task.rows_per_shard == 0:
                        cuts.append(place)
                    rows += 1
                digest.update(line)
                place += len(line)
        return FileScan(name, place, digest.hexdigest(), rows, (*cuts, place))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read the input file '{name}': {error}") from None


def _parquet_rows(path: Path, task: Task) -> int:
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        for column in (task.query_column, task.items_column, task.id_column):
            if column is not None and column not in names:
                raise InvalidRequest(f"the input file '{path.name}' has no column '{column}'")
        rows: int = file.metadata.num_rows
    return rows


def read_shard(path: Path, shard: Shard, task: Task) -> list[InputRow]:
    """The rows of a shard, in order.

    Raises:
        InvalidRequest: it cannot be read, or has other rows than when it was scanned.
    """
    values = (_read_parquet if SUFFIXES[path.suffix] == "parquet" else _read_lines)(path, shard, task)
    try:
        rows = [
            InputRow(number, None, row) if isinstance(row, InvalidRequest) else read_row(number, row, task)
            for number, row in enumerate(values, start=shard.first_row)
        ]
    except ValueError as error:
        raise InvalidRequest(f"cannot read the input file '{path.name}': {error}") from None
    if len(rows) != shard.rows:
        raise InvalidRequest(f"the input file '{path.name}' has changed since the job began")
    return rows


def _read_lines(path: Path, shard: Shard, task: Task) -> Iterator[dict[str, Any] | InvalidRequest]:
    with path.open("rb") as file:
        file.seek(shard.start)
        place = shard.start
        while place < shard.stop and (line := file.readline()):
            place += len(line)
            if line.strip():
                yield _parse(line)


def _parse(line: bytes) -> dict[str, Any] | InvalidRequest:
    try:
        # The SDK refuses the one text that holds a bad byte.
        values = json.loads(line.decode("utf-8", UNDECODABLE))
    except (ValueError, RecursionError) as error:
        return InvalidRequest(f"the row is not JSON: {error}")
    return values if isinstance(values, dict) else InvalidRequest("the row must be a JSON object")


def _read_parquet(path: Path, shard: Shard, task: Task) -> Iterator[dict[str, Any]]:
    columns = [name for name in (task.query_column, task.items_column, task.id_column) if name]
    with pq.ParquetFile(path) as file:
        groups: list[int] = []
        first = 0
        place = shard.start
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if first < shard.stop and first + rows > shard.start:
                if not groups:
                    place = first
                groups.append(group)
            first += rows
        for batch in file.iter_batches(BATCH, row_groups=groups, columns=columns):
            inside = batch.slice(max(shard.start - place, 0), max(shard.stop - max(place, shard.start), 0))
            place += batch.num_rows
            yield from inside.to_pylist()
            if place >= shard.stop:
                return
