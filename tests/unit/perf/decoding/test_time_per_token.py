"""Ratios of the time per token."""

from dataclasses import replace

from perf.decoding.engine_load import Run
from perf.decoding.time_per_token import summarise

RUN = Run(2.0, 2.0, 3.0, 10.0, 1.0, 100.0, 1.9, 110.0, 120.0, 5.0, 1.0, 4.0, 0.9, 0.1, 0.5, 0)


def test_ratios_are_taken_within_a_round() -> None:
    slow = [replace(RUN, tpot_ms=value) for value in (2.0, 4.0, 8.0)]
    fast = [replace(RUN, tpot_ms=value) for value in (1.0, 2.0, 4.0)]
    found = summarise({"a": slow, "b": fast}, {"a": {}, "b": {}}, {"a": 0.0, "b": 0.0})
    assert found["b"]["ratio"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert found["b"]["tpot_ms"] == 2.0
