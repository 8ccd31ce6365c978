"""Figures: the same numbers give the same bytes, others do not, and intervals are drawn where they are."""

from perf.report import charts
from perf.report.charts import Bar, Placed, Roof


def test_the_same_numbers_give_the_same_bytes() -> None:
    first, again, other = (charts.bars([Bar("a", value, 0.5, 2.0)], "x") for value in (1.0, 1.0, 1.5))
    assert first.startswith(b"\x89PNG")
    assert first == again != other
    assert b"Software" not in first


def test_every_kind_draws() -> None:
    lines = charts.curves({"p50": ([1.0, 2.0], [3.0, 4.0])}, "x", "y", log=False)
    parts = charts.stacked({"row": {"a": 1.0, "b": 2.0}}, "ms")
    roof = charts.roofline([Roof("r", 1e12, 1e9)], [Placed("p", 10.0, 1e10)])
    assert all(figure.startswith(b"\x89PNG") for figure in (lines, parts, roof))
