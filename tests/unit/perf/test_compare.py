"""The regression check: what moved is told from what did not, in the right direction."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import compare
from perf.compare import NotComparable, numbers

POINT = {"avg": 5.0, "p50": 4.5, "p99": 9.0, "items_per_s": 2_000.0}
SERVING = {
    "points": [
        {"name": "Poisson 70/s", "group": "open", **POINT},
        {"name": "32 in flight", "group": "closed", **POINT},
        {"name": "64 in flight", "group": "closed", **POINT},
    ]
}
BATCH = "1 x (120 + 10 x 180)"
TIMES = {"gpu_ms": 3.0, "launch_ms": 0.5, "total_ms": 4.0}
FORWARD = {
    "device": "a GPU",
    "1 prompt of 300": dict(TIMES),
    BATCH: dict(TIMES),
    "profile of one": [["kernel", 1.0, 2]],
}


def ablation(ratio: float, width: float = 0.01) -> dict[str, Any]:
    """A file of perf.scoring.ablations with one ratio."""
    base = {"value": {}, "ratio": {"median": 1.0, "low": 1.0, "high": 1.0}}
    other = {"value": {}, "ratio": {"median": ratio, "low": ratio - width, "high": ratio + width}}
    return {"groups": {"overlap": {"arms": {"on": base, "off": other}}}}


def changes(old: Any, new: Any, noise: float | None = None) -> dict[str, compare.Change]:
    return {change.name: change for change in compare.compare(numbers(old, noise), numbers(new, noise))}


def test_a_run_equals_itself_and_a_slower_one_is_seen() -> None:
    fewer, slower = copy.deepcopy(SERVING), copy.deepcopy(FORWARD)
    fewer["points"][1]["items_per_s"] *= 0.9
    slower[BATCH]["gpu_ms"] *= 1.1
    for old, new, count, name in (
        (SERVING, fewer, 3 * 3 + 2, "32 in flight: items/s"),
        (FORWARD, slower, 2 * 3, f"{BATCH}: gpu_ms"),
    ):
        same = changes(old, old)
        assert len(same) == count
        assert not any(change.moved for change in same.values())
        assert [name for name, change in changes(old, new).items() if change.worse] == [name]
        back = changes(new, old)
        assert [name for name, change in back.items() if change.moved] == [name]
        assert not any(change.worse for change in back.values())


def test_an_open_loops_rate_is_what_was_offered_and_no_result() -> None:
    assert "Poisson 70/s: items/s" not in changes(SERVING, SERVING)
    assert "64 in flight: items/s" in changes(SERVING, SERVING)


def test_a_ratio_moves_when_its_interval_leaves_the_old_one() -> None:
    assert not changes(ablation(1.20), ablation(1.17))[
        "overlap: off"
    ].moved  # intervals overlap, noise included
    assert changes(ablation(1.20), ablation(1.10))["overlap: off"].worse
    better = changes(ablation(1.20), ablation(1.30))["overlap: off"]
    assert better.moved
    assert not better.worse
    # The same medians with wide intervals are not a change.
    assert not changes(ablation(1.20, 0.1), ablation(1.10, 0.1))["overlap: off"].moved


@given(st.floats(0.1, 1e4), st.floats(0.001, 0.5), st.floats(0.5, 2.0))
def test_a_plain_number_moves_beyond_the_noise_and_not_before(
    value: float, noise: float, factor: float
) -> None:
    name, batch = "b: gpu_ms", {"launch_ms": 1.0, "total_ms": 1.0}
    found = changes({"b": {"gpu_ms": value, **batch}}, {"b": {"gpu_ms": value * factor, **batch}}, noise)[
        name
    ]
    assert found.ratio == pytest.approx(factor)
    beyond = factor / (1 + noise), 1 / factor / (1 + noise)
    if max(beyond) < 1 - 1e-9:
        assert not found.moved
    elif max(beyond) > 1 + 1e-9:
        assert found.moved
        assert found.worse == (factor > 1)


def test_what_is_missing_is_worse_and_other_kinds_are_refused() -> None:
    old, new = ablation(1.2), ablation(1.2)
    old["groups"]["head"] = old["groups"]["overlap"]
    assert [name for name, change in changes(old, new).items() if change.worse] == ["head: off (missing)"]
    with pytest.raises(NotComparable, match="in common"):
        changes(old, FORWARD)
    for nothing in ({}, [], {"points": []}):
        with pytest.raises(NotComparable, match="no results"):
            numbers(nothing)


@pytest.mark.parametrize(("ratio", "code"), [(1.2, 0), (1.0, 1), (1.5, 0)])
def test_the_exit_code_says_worse(
    ratio: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, results in (("old", ablation(1.2)), ("new", ablation(ratio))):
        (tmp_path / name).write_text(json.dumps(results))
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "old"), str(tmp_path / "new")])
    assert compare.main() == code
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "old"), str(tmp_path / "none")])
    assert compare.main() == 2
