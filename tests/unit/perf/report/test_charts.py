"""Figures: the same numbers give the same bytes, others do not, and intervals are drawn where they are."""

from perf.report import charts
from perf.report.charts import COLOURS, DASHES, Bar, Placed, Roof


def test_the_same_numbers_give_the_same_bytes() -> None:
    first, again, other = (charts.bars([Bar("a", value, 0.5, 2.0)], "x") for value in (1.0, 1.0, 1.5))
    assert first.png.startswith(b"\x89PNG")
    assert first.png == again.png != other.png
    assert b"Software" not in first.png


def test_every_kind_draws() -> None:
    lines = charts.curves({"p50": ([1.0, 2.0], [3.0, 4.0])}, "x", "y", log=False)
    parts = charts.stacked({"row": {"a": 1.0, "b": 2.0}}, "ms")
    roof = charts.roofline([Roof("r", 1e12, 1e9)], [Placed("p", 10.0, 1e10)])
    assert all(figure.png.startswith(b"\x89PNG") for figure in (lines, parts, roof))
    # What they show is said, too.
    assert lines.alt == "Lines of y over x: p50 from 3 to 4."
    assert parts.alt == "Bars of ms, made of a, b: row 3."
    assert roof.alt == "TFLOP/s reached over FLOP for each byte read, under r: p 0.01."
    assert charts.bars([Bar("a", 1.0, 0.5, 2.0)], "x").alt == "Bars of x: a 1."


def test_no_two_lines_look_alike() -> None:
    many = range(len(COLOURS) * len(DASHES))
    looks = {(COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]) for index in many}
    assert len(looks) == len(many)
