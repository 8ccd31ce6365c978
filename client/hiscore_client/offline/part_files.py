"""Part files: the output of one shard each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hiscore_client.errors import InvalidRequest
from hiscore_client.offline.job import Format
from hiscore_client.offline.output_directory import write_atomically


def part_path(output: Path, shard: int, output_format: Format) -> Path:
    """Return the path of a shard's part file; sorted by name, the files are in the order of the input."""
    return output / f"part-{shard:08}.{output_format}"


def write_part(
    path: Path, rows: Sequence[dict[str, Any]], output_format: Format, id_type: pa.DataType
) -> None:
    """Write a part file.

    Args:
        id_type: Arrow type of the ids, for Parquet.
    """
    if output_format == "jsonl":
        text = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        write_atomically(path, lambda file: _write_ascii(file, text))
        return
    if pa.types.is_string(id_type):
        rows = [{**row, "id": _as_text(row["id"])} for row in rows]
    table = pa.Table.from_pylist(
        [{**row, "error": _escape_surrogates(row["error"])} for row in rows], schema(id_type)
    )
    write_atomically(path, lambda file: pq.write_table(table, file))


def schema(id_type: pa.DataType) -> pa.Schema:
    """Return the schema of Parquet part files: the same for all, so that they can be read as one table."""
    return pa.schema(
        [
            pa.field("row", pa.int64(), nullable=False),
            pa.field("id", id_type),
            pa.field("scores", pa.list_(pa.list_(pa.float32()))),
            pa.field("prompt_tokens", pa.int32()),
            pa.field("cached_tokens", pa.int32()),
            pa.field("error", pa.string()),
        ]
    )


def count_errors(path: Path, rows: int, output_format: Format) -> int:
    """Count the rows of a part file that have an error.

    Args:
        rows: Number of rows that it must have.

    Raises:
        InvalidRequest: The file is damaged.
    """
    try:
        if output_format == "jsonl":
            errors = [json.loads(line)["error"] for line in path.read_bytes().splitlines()]
        else:
            errors = pq.read_table(path, columns=["error"])["error"].to_pylist()
    except (ValueError, KeyError, TypeError):
        errors = []
    if len(errors) != rows:
        raise InvalidRequest(f"'{path.name}' in the output is damaged: remove it and resume")
    return sum(error is not None for error in errors)


def id_type_of(source: Path, column: str | None) -> pa.DataType:
    """Return the Arrow type of the output's ids: that of a Parquet input; JSON values become text."""
    if column is None or source.suffix != ".parquet":
        return pa.string()
    with pq.ParquetFile(source) as file:
        return file.schema_arrow.field(column).type


def _as_text(value: Any) -> str | None:
    """Convert an id to text: a string unchanged, any other value as JSON."""
    if value is None:
        return None
    return _escape_surrogates(value) if isinstance(value, str) else json.dumps(value, default=str)


def _escape_surrogates(text: str | None) -> str | None:
    """Escape lone surrogates, which Arrow cannot hold."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _write_ascii(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")
