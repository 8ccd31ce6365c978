"""Offline scoring on Ray against the real server: killed, resumed, and every row there once."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds
import pytest

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from hiscore_client.offline.output_directory import UNFINISHED
from tests.client.cli.command import COMMAND
from tests.client.cli.command import run as run_command
from tests.server.counters import counted
from tests.server.gate import gate
from tests.support.comparison import INVARIANCE
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = (" Yes", " No")
OPTIONS = ["--id-column", "key", "--rows-per-shard", "5", "--workers", "2", "--in-flight", "4", "--softmax"]
ROWS, SHARDS = 150, 30
# Rows that lack a column.
BAD = {7: "query", 31: "items"}
WRONG = {7: "the row needs 'query', a string", 31: "the row needs 'items', a string or a list of strings"}


def make_row(number: int) -> dict[str, Any]:
    """Long enough that its text is most of what a call sends."""
    row = {
        "key": f"row {number}",
        "query": f"Is number {number} prime? " * 20,
        "items": [" yes"] * (number % 3) + [f" {number}"],
    }
    row.pop(BAD.get(number, ""), None)
    return row


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short enough a path for the sockets that Ray puts below it."""
    directory = Path(tempfile.mkdtemp(prefix="offline-"))
    monkeypatch.setenv("TMPDIR", str(directory))
    yield directory
    for process in left_running(directory):
        process.kill()
    shutil.rmtree(directory, ignore_errors=True)


def arguments(folder: Path, label: str = " Yes") -> list[str]:
    labels = ["--label", label, "--label", " No"]
    return ["offline", str(folder / "in.jsonl"), str(folder / "out"), *OPTIONS, *labels]


def command(folder: Path, url: str) -> list[str]:
    return [*COMMAND, *arguments(folder), "--url", url]


def parts(folder: Path) -> dict[str, int]:
    """The finished parts, with what tells a file that was written again."""
    return {file.name: file.stat().st_ino for file in (folder / "out").glob("part-*")}


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


def left_running(folder: Path) -> dict[psutil.Process, str]:
    """All processes that a job has started, by the folder that they work in: Ray overwrites all else."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                found[process] = "".join(process.cmdline())
    return found


def scoring_workers(job: subprocess.Popen[str]) -> list[psutil.Process]:
    """Those of Ray's processes that are at a shard."""
    found = []
    for process in psutil.Process(job.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "".join(process.cmdline()).startswith("ray::Map"):
                found.append(process)
    return found


def assert_complete(table: list[dict[str, Any]], server: Server) -> None:
    """One row for each of the input, in order, with the scores that a call by itself has."""
    assert [row["row"] for row in table] == list(range(ROWS))
    assert [row["id"] for row in table] == [f"row {number}" for number in range(ROWS)]
    with ScoreClient(server.grpc_url) as client:
        for number, row in enumerate(table):
            if number in BAD:
                assert row["error"] == f"InvalidRequest: {WRONG[number]}"
                assert row["scores"] is row["prompt_tokens"] is None
                continue
            given = make_row(number)
            result = client.score(given["query"], given["items"], labels=LABELS, apply_softmax=True)
            assert row["error"] is None
            assert row["prompt_tokens"] == result.usage.prompt_tokens
            np.testing.assert_allclose(row["scores"], result.scores, atol=INVARIANCE, rtol=0)


def test_killed_and_resumed_every_row_is_there_once(lm: Server, folder: Path) -> None:
    lines = [json.dumps(make_row(number)) + "\n" for number in range(ROWS)]
    (folder / "in.jsonl").write_text("".join(lines))
    # Fewer bytes than the texts alone, so that the job cannot be done, and enough for some shards.
    step = sum(map(len, lines)) * 4 // 10
    with gate(lm.grpc_url) as door:
        door.allow(step)
        job = subprocess.Popen(command(folder, door.address), text=True, stderr=subprocess.PIPE, cwd=folder)
        wait_for(lambda: door.held and parts(folder), job)
        before = parts(folder)
        assert len(left_running(folder)) > 2
        # Each is at a shard, none of which can end now.
        wait_for(lambda: len(scoring_workers(job)) == 2, job)
        killed = scoring_workers(job)[0]
        killed.kill()
        wait_for(lambda: killed not in scoring_workers(job) and len(scoring_workers(job)) == 2, job)
        door.allow(step)
        wait_for(lambda: door.held and len(parts(folder)) > len(before), job)
        job.kill()
        job.wait()
    # Two of Ray's own look for their cluster for a minute before they end, too.
    wait_for(lambda: all(name.endswith("Agent") for name in left_running(folder).values()))
    agents = left_running(folder)
    kept = parts(folder)
    assert 1 < len(kept) < SHARDS
    assert before.items() <= kept.items()
    (folder / "out" / f"{UNFINISHED}part").touch()
    left = set(folder.iterdir())

    # Neither another question nor another input goes on here.
    refused = run_command(*arguments(folder, " Maybe"), url=lm.grpc_url)
    assert (refused.returncode, b"started with 'labels'" in refused.stderr) == (2, True), refused.stderr
    (folder / "in.jsonl").write_text("".join(lines).replace("number 9 ", "number 8 "))
    refused = run_command(*arguments(folder), url=lm.grpc_url)
    assert (refused.returncode, b"'in.jsonl' has changed" in refused.stderr) == (2, True), refused.stderr
    assert parts(folder) == kept
    (folder / "in.jsonl").write_text("".join(lines))

    with counted(lm) as risen:
        resumed = subprocess.run(command(folder, lm.grpc_url), text=True, capture_output=True, cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert "Traceback" not in resumed.stderr
    assert json.loads(resumed.stdout) == {
        "rows": ROWS,
        "errors": len(BAD),
        "rows_found": 5 * len(kept),
        "shards": SHARDS,
    }
    assert kept.items() <= parts(folder).items()
    assert len(parts(folder)) == SHARDS
    again = [make_row(number) for number in range(ROWS) if part_of(number) not in kept]
    assert risen["scorer", "hiscore_items_total"] == sum(
        len(row["items"]) for row in again if "query" in row and "items" in row
    )
    assert_complete(ds.dataset(folder / "out").to_table().to_pylist(), lm)
    assert list((folder / "out").glob(f"{UNFINISHED}*")) == []
    # A run that ends by itself leaves no process and no file.
    wait_for(lambda: left_running(folder).keys() <= agents.keys())
    assert set(folder.iterdir()) == left


def part_of(number: int) -> str:
    return f"part-{number // 5:08}.parquet"
