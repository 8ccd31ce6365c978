"""The tests of `make check` take no longer together than it has time for, and so do those of `make test`."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import SLOW_ROWS
from tests.support.durations import Record, load, seconds_of, tier

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/unit", ROOT / "tests/client"
# Seconds on one core. On two, `make check` has two minutes; starting, collecting and linting take one of them.
FAST = 150
# `make test` has ten minutes, of which the servers take up to five.
UNMARKED = 520


def test_they_stay_within_their_budgets(request: pytest.FixtureRequest) -> None:
    """Compares records, not this run's times: what is too much here is too much on every machine."""
    tests = Counter(
        (item.path.relative_to(ROOT).as_posix(), tier({mark.name for mark in item.iter_markers()}))
        for item in request.session.items
        if any(map(item.path.is_relative_to, RECORDED))
    )
    sums = seconds_of(tests, load())
    assert sums["fast"] < FAST, "mark tests as `slow` or make them faster, then: make durations"
    assert sums["fast"] + sums["slow"] < UNMARKED, "mark tests as `exhaustive` or make them faster"


def test_make_test_tries_two_rows_of_a_slow_matrix(request: pytest.FixtureRequest) -> None:
    rows = Counter(
        item.nodeid.partition("[")[0]
        for item in request.session.items
        if "family" not in getattr(item, "callspec", SimpleNamespace(params={"family"})).params
        and tier({mark.name for mark in item.iter_markers()}) == "slow"
    )
    assert all(count <= SLOW_ROWS for count in rows.values())


RECORD: Record = {"a": {"fast": (10, 1.0), "slow": (2, 11.0)}, "b": {"fast": (8, 8.0)}}


@pytest.mark.parametrize(
    ("tests", "fast", "slow"),
    [
        ({("a", "fast"): 10, ("a", "slow"): 2, ("b", "fast"): 8}, 9, 11),
        ({("a", "fast"): 5, ("b", "fast"): 2}, 2.5, 0),
        ({("a", "fast"): 12, ("a", "slow"): 0}, 3, 0),
        ({("b", "fast"): 9, ("new", "fast"): 3}, 12, 0),
    ],
    ids=["as recorded", "fewer", "two lose their mark", "more, and a new file"],
)
def test_control_more_tests_and_fewer_marks_are_more_seconds(
    tests: dict[tuple[str, str], int], fast: float, slow: float
) -> None:
    assert seconds_of(tests, RECORD) == pytest.approx({"fast": fast, "slow": slow, "exhaustive": 0})


@pytest.mark.parametrize(
    ("marks", "name"),
    [((), "fast"), (("slow",), "slow"), (("slow", "exhaustive", "parametrize"), "exhaustive")],
)
def test_a_test_belongs_to_the_first_tier_that_runs_it(marks: tuple[str, ...], name: str) -> None:
    assert tier(marks) == name
