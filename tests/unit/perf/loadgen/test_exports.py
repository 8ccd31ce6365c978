"""Whoever waits for exports sees all that was counted before, on every instance."""

from collections.abc import Callable

import pytest

from perf.loadgen import exports

PAGE = """\
# HELP hiscore_exports_total Times that this instance's metrics were exported
hiscore_exports_total{{device="cpu:0",model="scorer",version="1"}} {}
hiscore_exports_total{{device="cpu:1",model="scorer",version="1"}} {}
hiscore_items_total{{device="cpu:0",model="scorer",version="1"}} 40
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[tuple[int, int]]], list[tuple[int, int]]]:
    """Serves pages with these counts, one after the other; returns those that are left."""

    def serve(counts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        monkeypatch.setattr(exports, "page", lambda url: PAGE.format(*counts.pop(0)))
        return counts

    monkeypatch.setattr(exports.time, "sleep", lambda seconds: None)
    return serve


def test_every_instance_exports_twice(served) -> None:
    left = served([(7, 3), (8, 3), (9, 4), (10, 5), (11, 6)])
    exports.wait_for_exports("url")
    assert left == [(11, 6)]


def test_one_that_exports_no_more_is_an_error(served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "TIMEOUT_S", -1.0)
    served([(7, 3), (9, 3)])
    with pytest.raises(TimeoutError):
        exports.wait_for_exports("url")
