"""What follows from the windows of a served load: saturation, targets, the cost of text."""

from types import SimpleNamespace
from typing import Any

import pytest

from perf.scoring.serving_steps import cost_of_text
from perf.scoring.serving_table import saturation, verdicts


def point(name: str, group: str = "closed", **more: Any) -> Any:
    numbers = {"items_per_s": 1_000.0, "rate": 100.0, "p50": 2.0, "p99": 100.0, "avg": 2.0, "failed": 0}
    return SimpleNamespace(name=name, group=group, gpu_busy=None, **{**numbers, **more})


def test_saturation_is_the_fastest_window_within_the_bound() -> None:
    points = [
        point("slower"),
        point("the one", items_per_s=2_700.0),
        point("too late", items_per_s=4_000.0, p99=500.0),
        point("failed calls", items_per_s=4_000.0, failed=1),
        point("from the cache", group="cache", items_per_s=4_000.0),
    ]
    best = saturation(points)
    assert best is not None
    assert best["window"] == "the one"
    assert saturation(points[2:]) is None
    assert "2700 items/s, target 3000: MISSED, 2660: met" in verdicts(points, None)[-1]


def test_targets_are_named_with_their_verdict() -> None:
    lines = verdicts([point("alone 300 + 1 x 0", p50=3.5, group="alone")], 0.05)
    assert lines == [
        "alone 300 + 1 x 0: p50 3.50 ms, target 3: MISSED",
        "text instead of ids: 5.0% fewer, target 10%: met",
    ]


def test_the_cost_of_text_is_the_share_of_the_rate_that_is_lost() -> None:
    rates = {"ids of text, 32": 110.0, "text, 32": 75.0, "text, again": 85.0, "ids of text, again": 90.0}
    assert cost_of_text([point(name, "text", rate=rate) for name, rate in rates.items()]) == pytest.approx(
        0.2
    )
