"""The input files: finding them, scanning them for shard boundaries, reading the rows of one shard."""

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hiscore_client.errors import InvalidRequest
from hiscore_client.offline.job import Task
from hiscore_client.offline.rows import InputRow, read_row
from hiscore_client.offline.shards import FileScan, Shard
from hiscore_client.tensors import UTF8_ERRORS

SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
# Bytes and rows read at once.
READ_BYTES = 2**20
READ_ROWS = 4_096


def find_files(path: Path) -> tuple[Path, ...]:
    """List the file itself, or all files below a directory, sorted; names that begin with . or _ are skipped.

    Raises:
        InvalidRequest: There are no files, one is of an unknown kind, or there are two kinds.
    """
    files = [path]
    if path.is_dir():
        below = (file for file in path.rglob("*") if file.is_file())
        files = sorted(file for file in below if not is_hidden(file.relative_to(path)))
    elif not path.is_file():
        raise InvalidRequest(f"the input '{path}' is neither a file nor a directory")
    unknown = [file.name for file in files if file.suffix not in SUFFIXES]
    if unknown:
        raise InvalidRequest(f"the input file '{unknown[0]}' must end in one of {', '.join(SUFFIXES)}")
    if len({SUFFIXES[file.suffix] for file in files}) != 1:
        raise InvalidRequest(f"'{path}' must hold files of one kind, Parquet or JSON Lines")
    return tuple(files)


def is_hidden(path: Path) -> bool:
    """Tell whether a name in the path begins with . or _, like the files that Spark writes beside its data."""
    return any(part.startswith((".", "_")) for part in path.parts)


def scan_file(path: Path, name: str, task: Task) -> FileScan:
    """Read a file once, for its fingerprint and shard boundaries.

    Args:
        name: Its name in the manifest.

    Raises:
        InvalidRequest: The file cannot be read, or lacks a column.
    """
    digest = hashlib.sha256()
    boundaries: list[int] = []
    try:
        if SUFFIXES[path.suffix] == "parquet":
            rows = _parquet_rows(path, task)
            boundaries = [*range(0, rows, task.rows_per_shard), rows]
            with path.open("rb") as file:
                while data := file.read(READ_BYTES):
                    digest.update(data)
            return FileScan(name, path.stat().st_size, digest.hexdigest(), rows, tuple(boundaries))
        rows = offset = 0
        with path.open("rb") as file:
            for line in file:
                if row := _row(line, offset):
                    if (
                        rows == 0
                        and task.id_column
                        and task.id_column not in (_fields(row) or (task.id_column,))
                    ):
                        raise ValueError(f"its first row has no '{task.id_column}' (--id-column)")
                    if rows % task.rows_per_shard == 0:
                        boundaries.append(offset)
                    rows += 1
                digest.update(line)
                offset += len(line)
        return FileScan(name, offset, digest.hexdigest(), rows, (*boundaries, offset))
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
    """Read the rows of a shard, in order.

    Args:
        shard: Which of its rows.

    Raises:
        InvalidRequest: The file cannot be read, or has changed since it was scanned.
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
        offset = shard.start
        while offset < shard.stop and (line := file.readline()):
            row = _row(line, offset)
            offset += len(line)
            if row:
                yield _parse(row)


def _row(line: bytes, offset: int) -> bytes:
    """Take a line without white space around it, and the file's first without a byte order mark."""
    return (line if offset else line.removeprefix(BOM_UTF8)).strip()


def _fields(line: bytes) -> dict[str, Any]:
    """Read a row's columns; none if it has none."""
    return {} if isinstance(row := _parse(line), InvalidRequest) else row


def _parse(line: bytes) -> dict[str, Any] | InvalidRequest:
    try:
        values = json.loads(line.decode("utf-8", UTF8_ERRORS))
    except (ValueError, RecursionError) as error:
        return InvalidRequest(f"the row is not JSON: {error}")
    return values if isinstance(values, dict) else InvalidRequest("the row must be a JSON object")


def _read_parquet(path: Path, shard: Shard, task: Task) -> Iterator[dict[str, Any]]:
    columns = [name for name in (task.query_column, task.items_column, task.id_column) if name]
    with pq.ParquetFile(path) as file:
        groups: list[int] = []
        group_start = 0
        position = shard.start
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if group_start < shard.stop and group_start + rows > shard.start:
                if not groups:
                    position = group_start
                groups.append(group)
            group_start += rows
        for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
            in_shard = batch.slice(
                max(shard.start - position, 0), max(shard.stop - max(position, shard.start), 0)
            )
            position += batch.num_rows
            yield from in_shard.to_pylist()
            if position >= shard.stop:
                return
