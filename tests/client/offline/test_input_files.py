"""The input cut into shards: whatever the files look like, every row is in one shard, in its place."""

import json
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore_client import InvalidRequest
from hiscore_client.offline.input_files import find_files, read_shard, scan_file
from hiscore_client.offline.job import Task
from hiscore_client.offline.run import scan_all
from hiscore_client.offline.shards import FileScan, Shard, plan_shards
from hiscore_client.records import ScoreRecord

Rows = list[dict[str, Any]]
FIELDS = {
    "query": st.text(max_size=5),
    "items": st.lists(st.text(max_size=3), max_size=3),
    "id": st.integers(0, 99),
}
ROWS = st.lists(st.fixed_dictionaries(FIELDS), max_size=25)
FILES = st.lists(ROWS, min_size=1, max_size=3)
BLANKS = st.lists(st.sampled_from(["\n", "  \n", "\r\n", ""]), min_size=1)
PER_SHARD = st.integers(1, 9)


def read_all(folder: Path, task: Task) -> tuple[list[tuple[int, Any, Any]], list[Shard]]:
    """(number, id, call) of the rows of all shards, one shard after another."""
    files = find_files(folder)
    shards = plan_shards(scan_all(folder, files, task), task.rows_per_shard)
    rows = [row for shard in shards for row in read_shard(files[shard.file], shard, task)]
    return [(row.number, row.id, row.call) for row in rows], shards


def expected(files: list[Rows]) -> list[tuple[int, Any, Any]]:
    rows = [row for file in files for row in file]
    return [(number, row["id"], ScoreRecord(row["query"], row["items"])) for number, row in enumerate(rows)]


@pytest.mark.slow
@given(FILES, PER_SHARD, BLANKS, st.booleans(), st.sampled_from(["", "\ufeff"]))
def test_every_line_is_in_one_shard(
    files: list[Rows], per_shard: int, blanks: list[str], ends: bool, mark: str
) -> None:
    task = Task(id_column="id", rows_per_shard=per_shard)
    with tempfile.TemporaryDirectory() as folder:
        for number, rows in enumerate(files):
            # Blank lines are not rows, wherever they are; the last line may lack its newline.
            lines = "".join(
                blanks[place % len(blanks)] + json.dumps(row, ensure_ascii=False) + "\n"
                for place, row in enumerate(rows)
            )
            path = Path(folder, f"{number}.jsonl")
            path.write_bytes((mark + (lines if ends else lines.removesuffix("\n"))).encode())
        found, shards = read_all(Path(folder), task)
    assert found == expected(files)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert all(1 <= shard.rows <= per_shard for shard in shards)


@pytest.mark.slow
@given(FILES, PER_SHARD, st.integers(1, 7))
def test_every_row_of_parquet_is_in_one_shard(files: list[Rows], per_shard: int, group: int) -> None:
    task = Task(id_column="id", rows_per_shard=per_shard)
    schema = pa.schema([("id", pa.int64()), ("items", pa.list_(pa.string())), ("query", pa.string())])
    with tempfile.TemporaryDirectory() as folder:
        for number, rows in enumerate(files):
            # Shards need not begin where row groups do.
            table = pa.Table.from_pylist(rows, schema)
            pq.write_table(table, Path(folder, f"{number}.parquet"), row_group_size=group)
        found, _ = read_all(Path(folder), task)
    assert found == expected(files)


def test_control_a_cut_in_the_wrong_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"query": "{place}", "items": "a"}}\n' for place in range(6)))
    task = Task(rows_per_shard=2)
    right = scan_file(path, path.name, task)
    first, second, *rest = right.boundaries
    wrong = replace(right, boundaries=(first, second + len(b'{"query": "0", "items": "a"}\n'), *rest))
    assert [len(read_shard(path, shard, task)) for shard in plan_shards([right], 2)] == [2, 2, 2]
    with pytest.raises(InvalidRequest, match="has changed"):
        [read_shard(path, shard, task) for shard in plan_shards([wrong], 2)]


@given(st.lists(st.integers(0, 50), max_size=5), PER_SHARD)
def test_shards_number_all_rows(sizes: list[int], per_shard: int) -> None:
    files = [FileScan("", 0, "", rows, (*range(0, rows, per_shard), rows)) for rows in sizes]
    shards = plan_shards(files, per_shard)
    numbers = [number for shard in shards for number in range(shard.first_row, shard.first_row + shard.rows)]
    assert numbers == list(range(sum(sizes)))


def test_an_item_may_stand_alone_and_what_is_no_call_says_why(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    wrong = {
        b'{"item": "b", "id": 2}': "needs 'q', a string",
        b'{"q": "a", "item": 3}': "needs 'item'",
        b'{"q": "a", "item": "b"}': "needs 'id', its id",
        b"no": "not JSON",
        b"[1]": "must be a JSON object",
        b'{"q": "\xff"': "not JSON",
        b"[" * 100_000: "not JSON",
    }
    path.write_bytes(b"\n".join([b'{"q": "a", "item": "b", "id": [1]}', *wrong]))
    task = Task(query_column="q", items_column="item", id_column="id")
    (shard,) = plan_shards([scan_file(path, path.name, task)], task.rows_per_shard)
    first, *bad = read_shard(path, shard, task)
    assert (first.id, first.call) == ([1], ScoreRecord("a", ["b"]))
    assert [row.id for row in bad] == [2, None, None, None, None, None, None]
    assert [row.number for row in bad] == [1, 2, 3, 4, 5, 6, 7]
    for row, message in zip(bad, wrong.values(), strict=True):
        assert isinstance(row.call, InvalidRequest)
        assert message in str(row.call)


def test_files_of_a_directory(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.ndjson", "_SUCCESS", ".part.crc", "_temporary/0.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_files(tmp_path) == (tmp_path / "a/z.ndjson", tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "must hold files"),
        (("a.jsonl", "b.jsonl.gz"), "'b.jsonl.gz' must end in"),
        (("a.jsonl", "b.parquet"), "one kind"),
    ],
)
def test_no_file_is_passed_over_in_silence(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InvalidRequest, match=message):
        find_files(tmp_path)


@pytest.mark.slow
def test_parquet_that_cannot_be_read_or_lacks_a_column(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"query": ["a"], "items": ["b"]}), path)
    assert scan_file(path, path.name, Task()).rows == 1
    with pytest.raises(InvalidRequest, match="no column 'key'"):
        scan_file(path, path.name, Task(id_column="key"))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InvalidRequest, match=r"cannot read the input file 'in.parquet'"):
        scan_file(path, path.name, Task())


@pytest.mark.parametrize(
    ("first", "known"), [('{"id": null}', True), ("[1]", True), ('{"query": "q"}', False)]
)
def test_lines_whose_first_lacks_the_column_of_ids_are_refused(
    first: str, known: bool, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f'\n{first}\n{{"id": 2}}\n')
    with nullcontext() if known else pytest.raises(InvalidRequest, match=r"has no 'id' \(--id-column\)"):
        assert scan_file(path, path.name, Task(id_column="id")).rows == 2
    assert scan_file(path, path.name, Task()).rows == 2
