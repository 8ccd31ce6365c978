"""The API's own Prometheus metrics, by route and status, over all of its processes."""

import os

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
# Set before this module is imported, or each process reports its own numbers.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """Counts requests and their seconds."""

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

    def started(self, route: str) -> None:
        """A request has begun."""
        self._running.labels(route).inc()

    def finished(self, route: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self._running.labels(route).dec()
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route, str(status)).observe(seconds)

    def page(self) -> bytes:
        """What Prometheus scrapes."""
        if DIRECTORY in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self._registry)
