"""perf_analyzer's load on scoring: fresh calls are fresh, repeated queries repeated, a failure stops nothing."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from perf.loadgen import load_plan as plan
from perf.loadgen import window as measure
from perf.loadgen.perf_analyzer import Exported, Target
from perf.loadgen.window import Meter, Point
from perf.scoring.score_load import CPU, GPU, Windows
from perf.scoring.score_load import measure as measure_all

LOAD = replace(CPU, rate=30, seconds=dict.fromkeys(CPU.seconds, 5.0), calls=100, pool=200)


class Server:
    """Answers as perf_analyzer exports it: from the cache what has been asked with the same query before."""

    def __init__(self, cache: bool = True) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._cache = cache
        self.asked: list[tuple[str, int]] = []

    def closed_loop(self, name: str, target: Target, concurrency: int, count: int) -> list[Exported]:
        return self.open_loop(name, target, [0.01 * number for number in range(count)])

    def open_loop(self, name: str, target: Target, arrivals: Sequence[float]) -> list[Exported]:
        self.asked.append((name, len(arrivals)))
        return [self._answer(target.entries[i % len(target.entries)], at) for i, at in enumerate(arrivals)]

    def _answer(self, entry: Any, at: float) -> Exported:
        inputs = {name: tensor["content"] for name, tensor in entry.items()}
        of_text = "query" in inputs
        query = tuple(inputs["query"] if of_text else inputs["input_ids"][: inputs["delimiter_indices"][0]])
        items = len(inputs["items"] if of_text else inputs["delimiter_indices"]) - (not of_text)
        cached = 32 if self._cache and query in self._seen else 0
        self._seen.add(query)
        request = {
            "timestamp": round(at * 1e9),
            "request_inputs": inputs,
            "response_timestamps": [round((at + 0.004) * 1e9)],
            "response_outputs": [{"scores": [0.25, 0.75] * items, "usage": [100, cached]}],
        }
        return Exported(at, request)


@pytest.fixture
def points() -> list[Point]:
    return []


def windows(server: Any, points: list[Point], load: Any = LOAD) -> Windows:
    triton: Any = SimpleNamespace(settings=SimpleNamespace(max_batch_tokens=100))
    gpu: Any = SimpleNamespace(busy=lambda begin, end: None, memory_gib=lambda begin, end: None)
    return Windows(plan.CPU, load, server, Meter(triton, gpu, 2e-5, points.append))


@pytest.fixture(autouse=True)
def no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "counters", lambda server: {})


def test_every_kind_is_measured_in_both_ways(points: list[Point]) -> None:
    server = Server()
    found = windows(server, points)
    measure_all(found, list(LOAD.seconds))
    assert found.failures == []
    assert [(point.group, point.name.split(",")[0]) for point in points] == [
        (group, title)
        for title in ("fresh ids", "one query for all", "fresh text")
        for group in ("open", "closed")
    ]
    assert [point.cached_calls == point.calls for point in points] == [False, False, True, True, False, False]
    assert sum(name == "" for name, _ in server.asked) == 3  # the warm-ups, which are not kept


def test_a_fresh_call_that_was_seen_before_fails_its_window_and_no_other(points: list[Point]) -> None:
    """More calls than there are distinct ones, and a cache that forgets nothing."""
    found = windows(Server(), points, replace(LOAD, pool=60))
    measure_all(found, list(LOAD.seconds))
    assert len(found.failures) == 4
    assert all("were served from the cache, meant to be fresh" in line for line in found.failures)
    assert not any(line.startswith("one query") for line in found.failures)


def test_a_repeated_query_that_is_not_cached_fails(points: list[Point]) -> None:
    found = windows(Server(cache=False), points)
    measure_all(found, list(LOAD.seconds))
    assert [line.split(":")[0] for line in found.failures] == [
        "one query for all, open_loop",
        "one query for all, closed_loop",
    ]


def test_the_published_load_is_the_default() -> None:
    assert (GPU.rate, GPU.seconds["fresh"]) == (70, 120)
    assert str(plan.GPU.request) == "120 + 10 x 180"
    # Least recently used goes first, so a cache with room for fewer queries than there are never has the next one.
    pages = plan.GPU.query_cache_bytes // (28 * 2 * 8 * 128 * 2 * 32)
    assert pages // (plan.GPU.request.query // 32) < GPU.pool
