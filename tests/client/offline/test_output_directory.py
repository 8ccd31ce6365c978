"""The output: files are complete or absent, one run at a time, and never another job's."""

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from hiscore_client import InvalidRequest, ScoreResult, Usage
from hiscore_client.offline.job import Format, Task
from hiscore_client.offline.manifest import Manifest, check_resume
from hiscore_client.offline.output_directory import MANIFEST, UNFINISHED, begin, exclusive, write_atomically
from hiscore_client.offline.part_files import count_errors, part_path, write_part
from hiscore_client.offline.rows import InputRow, output_row
from hiscore_client.offline.shards import FileScan
from hiscore_client.records import ScoreRecord

FILE = FileScan("a.jsonl", 10, "00", 2, (0, 10))
BEGUN = Manifest(Task(labels=("a",)), (FILE,))
OTHER = {
    "query_column": "q",
    "items_column": "i",
    "id_column": "key",
    "labels": ("b",),
    "label_token_ids": (1,),
    "apply_softmax": True,
    "temperature": 2.0,
    "item_first": True,
    "rows_per_shard": 5,
    "output_format": "jsonl",
    "adapter": "harm",
    "log_scores": True,
    "normalize": "tokens",
}
FORMATS: tuple[Format, ...] = ("parquet", "jsonl")


@pytest.mark.parametrize("name", [field.name for field in fields(Task)])
def test_no_other_task_goes_on_where_one_began(name: str) -> None:
    written = json.loads(BEGUN.as_json())
    for later in ("adapter", "log_scores", "normalize"):
        written["task"].pop(later)  # as before there was one
    check_resume(json.dumps(written), BEGUN)
    other = replace(BEGUN, task=replace(BEGUN.task, **{name: OTHER[name]}))
    with pytest.raises(InvalidRequest, match=f"'{name}'"):
        check_resume(BEGUN.as_json(), other)


@pytest.mark.parametrize("change", [{"name": "b.jsonl"}, {"size": 11}, {"sha256": "01"}, {"rows": 3}])
def test_no_other_input_goes_on(change: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="input file"):
        check_resume(BEGUN.as_json(), replace(BEGUN, files=(replace(FILE, **change),)))


def test_a_file_more_or_less_is_another_input() -> None:
    for files in ((), (FILE, FILE)):
        with pytest.raises(InvalidRequest, match="other input files"):
            check_resume(BEGUN.as_json(), replace(BEGUN, files=files))


@pytest.mark.parametrize("written", ["", "{}", "[]", '{"version": 1}', BEGUN.as_json()[:-9]])
def test_a_manifest_that_cannot_be_read(written: str) -> None:
    with pytest.raises(InvalidRequest, match="manifest cannot be read"):
        check_resume(written, BEGUN)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with exclusive(tmp_path), pytest.raises(InvalidRequest, match="not empty"):
        begin(tmp_path, BEGUN)
    assert not (tmp_path / MANIFEST).exists()


def test_one_run_at_a_time_and_nothing_unfinished_stays(tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    with exclusive(output):
        begin(output, BEGUN)
        (output / f"{UNFINISHED}by-a-killed-run").touch()
        with pytest.raises(InvalidRequest, match="another run"), exclusive(output):
            pass
        assert (output / f"{UNFINISHED}by-a-killed-run").exists()
    assert sorted(file.name for file in output.iterdir()) == ["_lock", MANIFEST]
    with exclusive(output):
        begin(output, BEGUN)


class Killed(BaseException):
    """Simulates kill -9 in the middle of a write."""


def torn(path: Path) -> None:
    path.write_text('{"row": 0, "error"')
    raise Killed


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part"
    with pytest.raises(Killed):
        write_atomically(path, torn)
    assert not path.exists()
    monkeypatch.setattr(os, "replace", lambda before, after: torn(tmp_path / "elsewhere"))
    with pytest.raises(Killed):
        write_atomically(path, lambda file: file.touch())
    assert not path.exists()


@pytest.mark.parametrize("output_format", FORMATS)
def test_control_a_part_written_in_place_would_be_torn_and_is_noticed(
    tmp_path: Path, output_format: Format
) -> None:
    path = part_path(tmp_path, 0, output_format)
    with pytest.raises(Killed):
        torn(path)
    with pytest.raises(InvalidRequest, match="damaged"):
        count_errors(path, 1, output_format)


@pytest.mark.parametrize("output_format", FORMATS)
def test_what_is_written_can_be_read_as_one_table(tmp_path: Path, output_format: Format) -> None:
    scored = ScoreResult(np.array([[0.25, 0.5], [1, 0]], np.float32), Usage(7, 3), "x")
    call = ScoreRecord("q", [])
    ids = [1, None, "text", "\ud800", {"a": [1]}]
    rows = [output_row(InputRow(place, row_id, call), scored) for place, row_id in enumerate(ids)]
    failed = output_row(InputRow(5, 5, call), InvalidRequest("half \udc80 a pair"))
    empty = output_row(InputRow(6, None, call), ScoreResult(np.zeros((0, 2), np.float32), Usage(1, 0), "x"))
    paths = [part_path(tmp_path, shard, output_format) for shard in range(3)]
    for path, part in zip(paths, (rows, [failed], [empty]), strict=True):
        write_part(path, part, output_format, pa.string())
    assert [
        count_errors(path, len(part), output_format)
        for path, part in zip(paths, (rows, [failed], [empty]), strict=True)
    ] == [0, 1, 0]
    with pytest.raises(InvalidRequest, match="damaged"):
        count_errors(paths[0], 4, output_format)
    if output_format == "parquet":
        found = ds.dataset(tmp_path).to_table().to_pylist()
        assert [row["id"] for row in found[:5]] == ["1", None, "text", r"\ud800", '{"a": [1]}']
    else:
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        assert [row["id"] for row in found[:5]] == ids
    assert [row["row"] for row in found] == list(range(7))
    assert all(row["scores"] == [[0.25, 0.5], [1.0, 0.0]] for row in found[:5])
    assert [(row["prompt_tokens"], row["cached_tokens"], row["error"]) for row in found[:5]] == [
        (7, 3, None)
    ] * 5
    assert found[5]["error"].startswith("InvalidRequest: half ")
    assert found[5]["scores"] is None
    assert found[6]["scores"] == []
