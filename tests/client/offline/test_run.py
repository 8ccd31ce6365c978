"""What a worker does with one shard, by an endpoint that fails on demand."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore_client import Cancelled, HiscoreError, InvalidRequest, Overloaded, ServerUnreachable
from hiscore_client.offline import run as offline
from hiscore_client.offline import server_pool
from hiscore_client.offline.job import Job, RunOptions, Task
from hiscore_client.offline.output_directory import SUCCESS
from hiscore_client.offline.server_pool import ServerPool
from hiscore_client.offline.shards import Shard
from hiscore_client.offline.worker import score_shard
from hiscore_client.records import ScoreRecord
from hiscore_client.retry import RetryPolicy
from tests.client.faulty_server import FaultyServer, abort, checksum, serving, when
from tests.support.timeouts import TIMEOUT_S

BACKOFF = server_pool.BACKOFF
TASK = Task(labels=("x",), rows_per_shard=5, output_format="jsonl")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "BACKOFF", RetryPolicy(first_pause=0.01, longest_pause=0.02))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"query": "q{row}", "items": ["a", "b"]}}\n' for row in range(12)))
    return path


def in_this_process(job: Job, shards: list[Shard]) -> Any:
    for shard in shards:
        yield score_shard(job, shard)


def run(source: Path, options: RunOptions, score: Callable[..., Any] = in_this_process) -> offline.Summary:
    return offline.run(source, source.parent / "out", TASK, options, score_shards=score)


def rows(source: Path) -> list[dict[str, Any]]:
    parts = sorted((source.parent / "out").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def assert_complete(source: Path) -> None:
    found = rows(source)
    assert [row["row"] for row in found] == list(range(12))
    for number, row in enumerate(found):
        scores = [[checksum(b"q%d" % number, item, b"x")] for item in (b"a", b"b")]
        np.testing.assert_array_equal(np.float32(row["scores"]), np.float32(scores))
    assert (source.parent / "out" / SUCCESS).exists()


def test_all_rows_with_so_many_calls_at_once(source: Path, server: FaultyServer, url: str) -> None:
    server.work_seconds = 0.02
    assert run(source, RunOptions((url,), in_flight=3)) == offline.Summary(12, 0, 0, 3)
    assert_complete(source)
    assert server.most_running <= 3
    # The control: the bound is what held them back. These wait for each other.
    server.most_running = 0
    server.faults.extend([when(lambda: server.most_running >= 4)] * 5)
    (source.parent / "out" / "part-00000000.jsonl").unlink()
    run(source, RunOptions((url,), in_flight=5))
    assert server.most_running > 3


def test_a_full_server_is_asked_again(source: Path, server: FaultyServer, url: str) -> None:
    server.faults.extend([abort("UNAVAILABLE", "full")] * 40)
    assert run(source, RunOptions((url,), in_flight=4)).errors == 0
    assert_complete(source)
    assert len(server.requests) == 12 + 40


def test_calls_go_round_and_on_to_the_next_server(
    source: Path, server: FaultyServer, url: str, dead_url: str
) -> None:
    other = FaultyServer()
    with serving(other) as second:
        assert run(source, RunOptions((url, dead_url, second), in_flight=2)).errors == 0
    assert_complete(source)
    assert len(server.requests) + len(other.requests) == 12
    assert min(len(server.requests), len(other.requests)) >= 3


def test_with_a_timeout_of_0_the_job_ends_and_its_rest_is_done_later(
    source: Path, server: FaultyServer, url: str, dead_url: str
) -> None:
    def two_then_the_rest_is_gone(job: Job, shards: list[Shard]) -> Any:
        yield from in_this_process(job, shards[:2])
        yield from in_this_process(
            Job(job.inputs, job.output, job.task, RunOptions((dead_url,), server_timeout=0)), shards
        )

    with pytest.raises(ServerUnreachable):
        run(source, RunOptions((url,)), two_then_the_rest_is_gone)
    assert [row["row"] for row in rows(source)] == list(range(10))
    assert not (source.parent / "out" / SUCCESS).exists()
    assert run(source, RunOptions((url,))) == offline.Summary(12, 0, 10, 3)
    assert_complete(source)
    assert len(server.requests) == 12


def test_a_row_that_fails_does_not_end_the_job(source: Path, server: FaultyServer, url: str) -> None:
    server.faults.append(abort("INVALID_ARGUMENT", "'items' is odd"))
    assert run(source, RunOptions((url,), in_flight=1)).errors == 1
    first, *others = rows(source)
    assert first["error"] == "InvalidRequest: 'items' is odd"
    assert first["scores"] is None
    assert all(row["error"] is None for row in others)


def test_the_real_pauses_outlast_a_server_that_has_not_noticed_its_death() -> None:
    assert sum(BACKOFF.pause(tries, lambda: 0.0) for tries in range(1, server_pool.FAULT_TRIES)) > 5


def test_too_many_errors_end_the_job(source: Path, server: FaultyServer, url: str) -> None:
    server.faults.extend([abort("INVALID_ARGUMENT", "'labels' is wrong")] * 12)
    with pytest.raises(
        HiscoreError, match=r"5 rows have failed, more than the 4 .*: InvalidRequest: 'labels'"
    ):
        run(source, RunOptions((url,), max_errors=4))
    assert len(server.requests) == 5
    # Those of earlier runs count.
    with pytest.raises(HiscoreError, match="5 rows have failed"):
        run(source, RunOptions((url,), max_errors=4))
    assert len(server.requests) == 5
    assert run(source, RunOptions((url,), max_errors=12)).errors == 12


def test_a_shard_that_is_lost_is_noticed(source: Path, url: str) -> None:
    with pytest.raises(HiscoreError, match="7 of 12 rows"):
        run(source, RunOptions((url,)), lambda job, shards: in_this_process(job, shards[1:]))
    assert not (source.parent / "out" / SUCCESS).exists()


def test_a_damaged_part_ends_the_job(source: Path, url: str) -> None:
    run(source, RunOptions((url,)))
    part = source.parent / "out" / "part-00000001.jsonl"
    part.write_text(part.read_text()[:-9])
    with pytest.raises(InvalidRequest, match=r"'part-00000001.jsonl' in the output is damaged"):
        run(source, RunOptions((url,)))
    part.unlink()
    assert run(source, RunOptions((url,))).rows_found == 7
    assert_complete(source)


def test_an_input_that_changes_meanwhile_is_noticed(source: Path, url: str) -> None:
    def shorten_then_score(job: Job, shards: list[Shard]) -> Any:
        source.write_text("\n".join(source.read_text().splitlines()[:7]))
        yield from in_this_process(job, shards)

    with pytest.raises(InvalidRequest, match="has changed"):
        run(source, RunOptions((url,)), shorten_then_score)


def test_a_wait_ends_when_the_shard_does(
    server: FaultyServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_pool, "BACKOFF", RetryPolicy(first_pause=3_600, longest_pause=3_600))
    server.faults.append(abort("UNAVAILABLE", "full"))
    pair = ServerPool(TASK, RunOptions((url,), server_timeout=1e9))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.score, ScoreRecord("q", ["a"]))
        while not server.requests:
            time.sleep(0.01)
        pair.close()
        with pytest.raises((Overloaded, Cancelled)):
            waiting.result(TIMEOUT_S)


@pytest.mark.parametrize(
    "change", [{"workers": 0}, {"in_flight": 0}, {"server_timeout": float("nan")}, {"urls": ()}]
)
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must be finite and at least"):
        RunOptions(**{"urls": ("a",), **change})


def test_the_output_must_lie_outside_of_the_input(source: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match="outside"):
        offline.run(
            source.parent, source.parent / "out", TASK, RunOptions((url,)), score_shards=in_this_process
        )
