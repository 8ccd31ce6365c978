"""What models count reaches Prometheus, and what has not risen costs no round trip; with a fake backend."""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hiscore.batching.totals import Totals
from hiscore.edge.error_log import ErrorLog
from hiscore.errors import Code, RequestError
from hiscore.histogram import Histogram

Series = tuple[str, frozenset[tuple[str, str]]]


class Backend:
    """The part of ``pb_utils`` that makes metrics; `round_trips` counts calls to them."""

    def __init__(self) -> None:
        self.values: Counter[Series] = Counter()
        self.round_trips = 0

    def family(self, name: str, description: str, kind: str) -> Any:
        assert description
        return SimpleNamespace(Metric=lambda labels: SimpleNamespace(increment=self.increment(name, labels)))

    def increment(self, name: str, labels: dict[str, str]) -> Any:
        series = name, frozenset(labels.items())
        self.values[series] += 0

        def by(amount: float) -> None:
            assert amount > 0, "Prometheus' counters only rise"
            self.round_trips += 1
            self.values[series] += amount

        return by

    def get(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    return Backend()


@pytest.fixture
def feeds(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    class Family:
        COUNTER, GAUGE = "counter", "gauge"

        def __new__(cls, name: str, description: str, kind: str) -> Any:
            return backend.family(name, description, kind)

    monkeypatch.setitem(
        sys.modules,
        "triton_python_backend_utils",
        SimpleNamespace(MetricFamily=Family),  # type: ignore[arg-type]
    )
    for name in ("hiscore.edge.metrics", "hiscore.edge.feeds"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("hiscore.edge.feeds")
    for name in ("hiscore.edge.metrics", "hiscore.edge.feeds"):
        sys.modules.pop(name, None)


def test_a_histogram_arrives_whole(backend: Backend, feeds: ModuleType) -> None:
    histogram = Histogram((1.0, 2.0))
    feed = feeds.HistogramFeed("seconds", "Seconds", {"model": "m"}, histogram)
    for value in (0.5, 1.5, 1.5, 9.0):
        histogram.observe(value)
        feed.update()
    buckets = {le: backend.get("seconds_bucket", model="m", le=le) for le in ("1", "2", "+Inf")}
    assert buckets == {"1": 1, "2": 3, "+Inf": 4}
    assert backend.get("seconds_sum", model="m") == 12.5
    assert backend.get("seconds_count", model="m") == 4


def test_what_has_not_risen_costs_nothing(backend: Backend, feeds: ModuleType) -> None:
    totals, errors = Totals(), ErrorLog()
    every = feeds.batcher_feeds({"model": "m"}, totals, errors)
    totals.call.observe(0.2)
    totals.rejects["full"] += 1
    errors.write("", RequestError("no"))
    for feed in every:
        feed.update()
    spent = backend.round_trips
    assert spent > 0
    for feed in every:
        feed.update()
    assert backend.round_trips == spent


def test_every_error_is_counted_once_by_its_code(backend: Backend, feeds: ModuleType) -> None:
    """Lines are rate-limited, counts are not."""
    errors = ErrorLog(limit=1)
    feed = feeds.ErrorsFeed({"model": "m"}, errors)
    for code, calls in ((Code.INVALID_ARG, 3), (Code.INTERNAL, 1)):
        for _ in range(calls):
            errors.write("id", RequestError("no", code))
            feed.update()
    counted = {code: backend.get("hiscore_errors_total", model="m", reason=code.value) for code in Code}
    assert counted == {Code.INVALID_ARG: 3, Code.UNAVAILABLE: 0, Code.CANCELLED: 0, Code.INTERNAL: 1}


def test_a_full_dev_shm_is_counted_and_other_failures_are_not(backend: Backend, feeds: ModuleType) -> None:
    errors = ErrorLog()
    feed = feeds.ErrorsFeed({"model": "m"}, errors)
    errors.unsent(
        RuntimeError("Failed to increase the shared memory pool size for key 'hiscore-x': No space")
    )
    errors.unsent(RuntimeError("something else"))
    feed.update()
    assert backend.get("hiscore_shared_memory_failures_total", model="m") == 1


def test_the_exporter_goes_on_after_a_failure_and_ends_complete(feeds: ModuleType, backend: Backend) -> None:
    updates: list[str] = []

    class Broken:
        def update(self) -> None:
            updates.append("broken")
            raise RuntimeError("no")

    class Works:
        def update(self) -> None:
            updates.append("works")

    exporter = feeds.Exporter([Broken(), Works()], {"model": "m"})
    exporter.close()
    assert updates == ["broken", "works"]
    assert backend.get("hiscore_exports_total", model="m") == 1


def test_batches_are_counted_without_a_round_trip(feeds: ModuleType, backend: Backend) -> None:
    metrics = importlib.import_module("hiscore.edge.metrics")
    counts = feeds.CountsFeed(
        metrics.TritonMetrics({"items": "i", "batches": "b", "none": "n"}, {"model": "m"})
    )
    for items in (3, 4):
        counts.add(items=items, batches=1, none=0)
    assert backend.round_trips == 0
    counts.update()
    assert (backend.get("items", model="m"), backend.get("batches", model="m")) == (7, 2)
    assert backend.round_trips == 2
    counts.update()
    assert backend.round_trips == 2
