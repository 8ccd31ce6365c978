"""The API's own Prometheus metrics, by route and status, over all of its processes."""

import os
import time
from functools import cache
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

# From a cached score on a GPU to a long prompt on a CPU, in seconds.
LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Between tokens, in seconds.
GAPS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
# Set before this module is imported, or each process reports its own numbers.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "hiscore_api_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "hiscore_api_request_seconds",
            "Seconds from a request's headers to the end of its answer",
            ["route", "status"],
            buckets=LATENCIES,
            registry=registry,
        )
        self._running = Gauge(
            "hiscore_api_requests_running",
            "Requests that are being answered",
            ["route"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        # Finding them by their labels takes longer than counting.
        self._running_of = cache(self._running.labels)
        self._answered_of = cache(self._answered)

        self._first_token = Histogram(
            "hiscore_api_time_to_first_token_seconds",
            "Seconds from a request's body to the first token of a choice",
            ["route"],
            buckets=LATENCIES,
            registry=registry,
        )
        self._between_tokens = Histogram(
            "hiscore_api_time_between_tokens_seconds",
            "Seconds between the tokens of a choice; of tokens that arrive together, an equal share each",
            ["route"],
            buckets=GAPS,
            registry=registry,
        )

    def token_times(self, route: str) -> "TokenTimes":
        return TokenTimes(self._first_token.labels(route), self._between_tokens.labels(route))

    def started(self, route: str) -> None:
        self._running_of(route).inc()

    def finished(self, route: str, status: int, seconds: float) -> None:
        self._running_of(route).dec()
        requests, its_seconds = self._answered_of(route, status)
        requests.inc()
        its_seconds.observe(seconds)

    def _answered(self, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(route, str(status)), self._seconds.labels(route, str(status))

    def page(self) -> bytes:
        if DIRECTORY in os.environ:
            _forget_dead(Path(os.environ[DIRECTORY]))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self._registry)


def _forget_dead(directory: Path) -> None:
    """Remove the live gauges of processes that have died: what they were answering would count for ever."""
    for file in directory.glob("gauge_live*.db"):
        try:
            os.kill(int(file.stem.rpartition("_")[2]), 0)
        except OSError:  # there is none, or it is not ours
            file.unlink(missing_ok=True)


class TokenTimes:
    """The times of a request's tokens: `first` counts the seconds to the first, `between` those between two."""

    def __init__(self, first: Histogram, between: Histogram) -> None:
        self._first, self._between = first, between
        self._started = time.perf_counter()
        self._latest: dict[int, float] = {}

    def add(self, choice: int, tokens: int) -> None:
        if not tokens:
            return
        now = time.perf_counter()
        before = self._latest.get(choice)
        self._latest[choice] = now
        if before is None:
            self._first.observe(now - self._started)
            return
        for _ in range(tokens):
            self._between.observe((now - before) / tokens)
