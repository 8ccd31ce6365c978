"""Bring metrics up to date with what a model counts, once a second and on a thread of their own.

Counting is cheap and exporting is not: calls never wait for a round trip to the server's process.
"""

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from hiscore.batching.totals import Totals
from hiscore.edge.error_log import ErrorLog
from hiscore.edge.metrics import Rejects, TritonMetrics
from hiscore.errors import REASONS, Code
from hiscore.histogram import OF_CALLS, Histogram

log = logging.getLogger(__name__)

EXPORT_EVERY_S = 1.0
SECONDS = {
    "hiscore_queue_seconds_total": "Seconds that calls waited until they were launched, each for itself",
    "hiscore_launch_seconds_total": "Seconds spent on launching batches; on a CPU, on computing them",
    "hiscore_device_seconds_total": "Seconds spent on waiting for launched batches",
    "hiscore_answer_seconds_total": "Seconds spent on sending answers",
}
ERRORS = {"hiscore_errors_total": f"Calls answered with an error: {', '.join(code.value for code in Code)}"}
EXPORTS = {"hiscore_exports_total": "Times that this instance's metrics were exported"}
NO_MEMORY = {"hiscore_shared_memory_failures_total": "Answers for which /dev/shm had no room"}


class Feed(Protocol):
    """Something that a model counts, and its metrics."""

    def update(self) -> None:
        """Export what has increased."""


class HistogramFeed:
    """Exports a histogram as counters with a label ``le``, which Prometheus takes for a histogram.

    The backend's own histograms take one value per round trip.
    """

    def __init__(self, name: str, text: str, labels: dict[str, str], histogram: Histogram) -> None:
        self._name, self._histogram = name, histogram
        self._totals = TritonMetrics(
            {f"{name}_sum": f"{text}: sum", f"{name}_count": f"{text}: number"}, labels
        )
        self._buckets = {
            le: TritonMetrics({f"{name}_bucket": f"{text}, up to le"}, labels | {"le": le})
            for le in histogram.buckets()
        }

    def update(self) -> None:
        name, buckets, total = self._name, self._histogram.buckets(), self._histogram.sum
        for le, count in buckets.items():
            self._buckets[le].set(**{f"{name}_bucket": count})
        self._totals.set(**{f"{name}_sum": total, f"{name}_count": buckets["+Inf"]})


class CountsFeed:
    """Adds up what batches count, and exports the sums to `counters` of the same names."""

    def __init__(self, counters: TritonMetrics) -> None:
        self._counters, self._lock = counters, threading.Lock()
        self._totals: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        """Count, from any thread and without a round trip."""
        with self._lock:
            self._totals.update(amounts)

    def update(self) -> None:
        with self._lock:
            totals = dict(self._totals)
        self._counters.set(**totals)


class ErrorsFeed:
    """Exports how many calls were answered with an error, by its code."""

    def __init__(self, labels: dict[str, str], errors: ErrorLog) -> None:
        self._errors = errors
        self._counters = {code: TritonMetrics(ERRORS, labels | {"reason": code.value}) for code in Code}
        self._no_memory = TritonMetrics(NO_MEMORY, labels)

    def update(self) -> None:
        for code, counter in self._counters.items():
            counter.set(hiscore_errors_total=self._errors.counts[code])
        self._no_memory.set(hiscore_shared_memory_failures_total=self._errors.no_shared_memory)


class TotalsFeed:
    def __init__(self, labels: dict[str, str], totals: Totals) -> None:
        self._totals, self._seconds, self._rejects = totals, TritonMetrics(SECONDS, labels), Rejects(labels)

    def update(self) -> None:
        for part in ("queue", "launch", "device", "answer"):
            self._seconds.set(**{f"hiscore_{part}_seconds_total": getattr(self._totals, f"{part}_seconds")})
        for reason in REASONS:
            self._rejects.raise_to(reason, self._totals.rejects[reason])


def histogram_feeds(
    metrics: Mapping[str, tuple[str, str]], labels: dict[str, str], source: object
) -> list[HistogramFeed]:
    """A feed for each histogram: attribute of `source` -> (metric, help)."""
    return [
        HistogramFeed(name, text, labels, getattr(source, field)) for field, (name, text) in metrics.items()
    ]


def batcher_feeds(labels: dict[str, str], totals: Totals, errors: ErrorLog) -> list[Feed]:
    """The feeds of a model with a batcher."""
    return [
        TotalsFeed(labels, totals),
        *histogram_feeds(OF_CALLS, labels, totals),
        ErrorsFeed(labels, errors),
    ]


class Exporter:
    """Updates feeds once a second, on a thread of its own, and counts exports under `labels`."""

    def __init__(self, feeds: Sequence[Feed], labels: dict[str, str]) -> None:
        self._exports = CountsFeed(TritonMetrics(EXPORTS, labels))
        # At the end of each export: whoever sees it twice sees all that was counted before.
        self._feeds = [*feeds, self._exports]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hiscore-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export the rest, then end the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(EXPORT_EVERY_S)
            self._exports.add(hiscore_exports_total=1)
            for feed in self._feeds:
                try:
                    feed.update()
                except Exception:
                    log.exception("metrics could not be exported")
