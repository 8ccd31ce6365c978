"""Requests over all addresses of a name, by gRPC's own balancing; here the name is a list of addresses."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from hiscore_client import AsyncScoreClient, InvalidRequest, ScoreClient
from tests.client.faulty_server import FaultyServer, serving
from tests.support.timeouts import TIMEOUT_S

# A connection takes its time, and until then all requests go to the other server.


@pytest.fixture
def servers() -> tuple[FaultyServer, FaultyServer]:
    return FaultyServer(), FaultyServer()


@pytest.fixture
def url(servers: tuple[FaultyServer, FaultyServer]) -> Iterator[str]:
    with serving(servers[0]) as first, serving(servers[1]) as second:
        yield f"ipv4:{first},{second}"


def until_both_have(servers: tuple[FaultyServer, FaultyServer], requests: int) -> Iterator[None]:
    deadline = time.monotonic() + TIMEOUT_S
    while min(len(server.requests) for server in servers) < requests and time.monotonic() < deadline:
        yield


def score(url: str, calls: Iterable[None], **options: Any) -> None:
    with ScoreClient(url, **options) as client:
        for _ in calls:
            assert len(client.score("a", ["b"], labels=["c"]).scores) == 1


def generate(url: str, calls: Iterable[None], **options: Any) -> None:
    with ScoreClient(url, **options) as client:
        for _ in calls:
            assert [*client.generate("a")][-1].finish_reason == "stop"


def score_async(url: str, calls: Iterable[None], **options: Any) -> None:
    async def run() -> None:
        async with AsyncScoreClient(url, **options) as client:
            for _ in calls:
                assert len((await client.score("a", ["b"], labels=["c"])).scores) == 1

    asyncio.run(run())


def generate_async(url: str, calls: Iterable[None], **options: Any) -> None:
    async def run() -> None:
        async with AsyncScoreClient(url, **options) as client:
            for _ in calls:
                assert [chunk async for chunk in client.generate("a")][-1].finish_reason == "stop"

    asyncio.run(run())


@pytest.mark.parametrize("way", [score, generate, score_async, generate_async])
def test_requests_go_to_every_address(way: Any, url: str, servers: tuple[FaultyServer, FaultyServer]) -> None:
    way(url, until_both_have(servers, requests=5), load_balancing="round_robin")
    counts = [len(server.requests) for server in servers]
    assert min(counts) == 5
    # The control: by default as many requests all go to one server.
    for server in servers:
        server.requests.clear()
    way(url, [None] * sum(counts))
    assert sorted(len(server.requests) for server in servers) == [0, sum(counts)]


@pytest.mark.parametrize("client", [ScoreClient, AsyncScoreClient])
def test_an_unknown_balancing_is_refused(client: Any) -> None:
    with pytest.raises(
        InvalidRequest, match="'load_balancing' is 'random': known are pick_first, round_robin"
    ):
        client("localhost:8001", load_balancing="random")
