"""How long a pool of servers waits for one that can take a row, without a network or a clock."""

from typing import Any

import numpy as np
import pytest

from hiscore_client import (
    HiscoreError,
    Overloaded,
    RetryPolicy,
    ScoreResult,
    ServerFault,
    ServerUnreachable,
    Usage,
)
from hiscore_client.offline import server_pool
from hiscore_client.offline.job import RunOptions, Task
from hiscore_client.offline.server_pool import FAULT_TRIES, ServerPool
from hiscore_client.records import ScoreRecord

RESULT = ScoreResult(np.zeros((1, 1), np.float32), Usage(1, 0), "id")


class FakeClient:
    def __init__(self, world: "World", *failures: HiscoreError) -> None:
        self.world = world
        self.failures = list(failures)

    def score(self, *args: Any, **options: Any) -> ScoreResult:
        self.world.tried.append((self, self.world.now))
        self.world.options = options
        self.world.now += self.world.seconds
        if self.failures:
            raise self.failures.pop(0)
        return RESULT

    def close(self) -> None:
        pass


class World:
    """Servers, and a clock that only calls and pauses move."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.tried: list[tuple[FakeClient, float]] = []
        self.options: dict[str, Any] = {}

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        pass

    def score(self, *clients: FakeClient, server_timeout: float = 600.0, first: int = 0) -> ScoreResult:
        options = RunOptions(tuple("host:1" for _ in clients), server_timeout=server_timeout)
        task = Task(labels=("x",), log_scores=True, normalize="bytes")
        with ServerPool(task, options, first, lambda: self.now) as pool:
            for client in pool._clients:
                client.close()
            pool._clients, pool._closed = list(clients), self  # type: ignore[assignment]
            return pool.score(ScoreRecord("q", ["a"]))


@pytest.fixture(autouse=True)
def _pauses_of_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetryPolicy(first_pause=10.0, longest_pause=10.0)
    monkeypatch.setattr(RetryPolicy, "pause", lambda self, failures: self.longest_pause)
    monkeypatch.setattr(server_pool, "BACKOFF", policy)


def test_a_record_is_scored_as_the_task_says() -> None:
    world = World()
    world.score(FakeClient(world))
    asked = {name: world.options[name] for name in ("labels", "log_scores", "normalize")}
    assert asked == {"labels": ["x"], "log_scores": True, "normalize": "bytes"}


def test_the_timeout_counts_from_the_first_failure_and_no_pause_outlasts_it() -> None:
    world = World(seconds=5.0)
    client = FakeClient(world, *[Overloaded("full")] * 9)
    with pytest.raises(Overloaded, match="full"):
        world.score(client, server_timeout=30.0)
    # The first fails at 5, so the last pause must end by 35.
    assert [at for _, at in world.tried] == [0.0, 15.0, 30.0]
    world = World(seconds=0.0)
    with pytest.raises(ServerUnreachable):
        world.score(FakeClient(world, *[ServerUnreachable("gone")] * 9), server_timeout=30.0)
    assert [at for _, at in world.tried] == [0.0, 10.0, 20.0, 30.0]


def test_with_a_timeout_of_0_each_server_is_tried_once_at_least() -> None:
    world = World()
    clients = [FakeClient(world, *[Overloaded("full")] * 9) for _ in range(3)]
    with pytest.raises(Overloaded):
        world.score(*clients, server_timeout=0.0)
    assert [client for client, _ in world.tried] == clients


def test_servers_take_turns_from_the_given_one_and_pauses_come_after_a_round() -> None:
    world = World()
    first, second = FakeClient(world), FakeClient(world, Overloaded("full"))
    assert world.score(first, second, first=1) is RESULT
    assert world.tried == [(second, 0.0), (first, 0.0)]
    world = World()
    clients = [FakeClient(world, Overloaded("full")) for _ in range(2)]
    assert world.score(*clients) is RESULT
    assert [at for _, at in world.tried] == [0.0, 0.0, 10.0]


@pytest.mark.parametrize("servers", [1, 2])
def test_faults_are_counted_per_server_and_apart_from_overload(servers: int) -> None:
    tries = FAULT_TRIES * servers
    world = World()
    clients = [
        FakeClient(world, *[ServerFault("broken")] * FAULT_TRIES, Overloaded("full")) for _ in range(servers)
    ]
    with pytest.raises(ServerFault, match="broken"):
        world.score(*clients, server_timeout=1e9)
    assert len(world.tried) == tries
    world = World()
    clients = [
        FakeClient(world, *[Overloaded("full")] * 50, *[ServerFault("broken")] * (FAULT_TRIES - 1))
        for _ in range(servers)
    ]
    assert world.score(*clients, server_timeout=1e9) is RESULT
