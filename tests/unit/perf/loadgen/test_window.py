import pytest

from perf.loadgen.generator import Sample
from perf.loadgen.scorer_calls import Shape
from perf.loadgen.window import Window, summarise


def test_a_windows_numbers_are_those_of_its_calls() -> None:
    calls = [Sample(i, float(i), i + 0.001, i + 0.041) for i in range(2, 10)]
    calls[-1].done = 9.101
    calls.append(Sample(10, 9.5, 9.5, error="UNAVAILABLE: full"))
    calls[0].cached = 4
    risen = {"tokens": 600, "forwards": 6, "calls": 10, "executions": 5, "queue_us": 20_000}
    window = Window("closed", "a window", Shape(4, 2, 3), "pool", seconds=10.0)
    point = summarise(window, calls, risen, 200)
    assert (point.calls, point.failed, point.cached_calls) == (9, 1, 1)
    assert point.errors == ["UNAVAILABLE: full"]
    # The rate counts from the end of the ramp, 2 s, to 10 s: the calls that were sent at 2, ... 9 s.
    assert point.rate == pytest.approx(8 / 8)
    assert point.items_per_s == 2 * point.rate
    assert point.p50 == pytest.approx(41)
    assert point.late_p99 == pytest.approx(1)
    assert point.within_50_ms == 7 / 9
    assert (point.tokens_per_forward, point.batch_fill, point.calls_per_execution) == (100, 0.5, 2)
    assert point.queue_ms == 2
    with pytest.raises(RuntimeError, match="no call was answered: UNAVAILABLE"):
        summarise(window, calls[-1:], risen, 200)
