"""When the requests of an open loop were due, from the export and the schedule."""

from pathlib import Path
from typing import Any

import pytest

from perf.loadgen.perf_analyzer import Analyzer, Target


def test_the_least_late_request_counts_as_on_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent 100, 30 and 50 ms after the schedule by a clock that is 7 s ahead, exported in another order."""
    times = (7.1, 8.03, 9.05)
    requests: list[dict[str, Any]] = [{"timestamp": int(1e9 * times[i])} for i in (2, 0, 1)]
    monkeypatch.setattr(Analyzer, "_run", lambda *_, **__: requests)
    found = Analyzer("host:1", tmp_path / "log").open_loop("", Target("scorer", []), [0.0, 1.0, 2.0])
    assert [each.intended for each in found] == pytest.approx([7.03, 8.03, 9.03])
    assert [each.request["timestamp"] for each in found] == [int(1e9 * time) for time in times]
