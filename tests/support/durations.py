"""Seconds of each file's tests: a plugin of pytest records them, and a test holds their sum to a budget.

`make durations` writes tests/durations.json: a list of tests and seconds for each file, and for each of its tiers
(tests/README.md). Seconds that a test spent waiting for a core do not count, so that a busy machine records what
a quiet one would.
"""

import json
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[1] / "durations.json"
TIERS = ("fast", "slow", "exhaustive")

# Number of tests, and their seconds together, by file and tier.
Record = dict[str, dict[str, tuple[int, float]]]


def tier(marks: Container[str]) -> str:
    """Name the first tier that runs a test with these marks."""
    return next((name for name in ("exhaustive", "slow") if name in marks), "fast")


def load() -> Record:
    return {
        file: {name: (count, seconds) for name, (count, seconds) in tiers.items()}
        for file, tiers in json.loads(RECORD.read_text()).items()
    }


def seconds_of(tests: Mapping[tuple[str, str], int], record: Record) -> dict[str, float]:
    """Sum the recorded seconds of tests, by tier.

    A test beyond the recorded number takes the mean of its file, tests of all tiers alike: one that loses its mark
    `slow` costs what slow ones do. In a file without a record it takes the mean of all recorded tests.

    Args:
        tests: Numbers of tests by file and tier.
    """
    everything = [entry for tiers in record.values() for entry in tiers.values()]
    sums = dict.fromkeys(TIERS, 0.0)
    for (file, name), count in tests.items():
        known, seconds = record.get(file, {}).get(name, (0, 0.0))
        mean = _mean(record.get(file, {}).values() or everything)
        sums[name] += seconds * min(1, count / known) if known else 0.0
        sums[name] += mean * max(0, count - known)
    return sums


def _mean(entries: Iterable[tuple[int, float]]) -> float:
    counts, seconds = zip(*entries, strict=True)
    return sum(seconds) / sum(counts)


class _Recorder:
    """Collects what processes of pytest report, and writes the record when all are done."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            key = report.nodeid.split("::")[0], tier(report.keywords)
            self._counts[key] += 1
            self._seconds[key] += dict(report.user_properties)["seconds"]

    def pytest_sessionfinish(self) -> None:
        files: dict[str, list[str]] = {}
        for file, name in sorted(self._counts, key=lambda key: (key[0], TIERS.index(key[1]))):
            entry = [self._counts[file, name], round(self._seconds[file, name], 2)]
            files.setdefault(file, []).append(f'"{name}": {json.dumps(entry)}')
        lines = (f'"{file}": {{{", ".join(tiers)}}}' for file, tiers in files.items())
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


_started = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    global _started
    _started = _without_waits()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Give the last report of a test its seconds."""
    yield
    item.user_properties.append(("seconds", _without_waits() - _started))


def _without_waits() -> float:
    """Seconds that go on unless this thread is ready to run and has no core."""
    _, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.monotonic() - int(waited) / 1e9
