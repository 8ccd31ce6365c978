"""Published numbers are shown next to ours, each with what its change was worth."""

from typing import Any

from perf.report.parts import Raw
from perf.report.published_section import published
from tests.unit.perf.report.made_results import made

MEAN = "per token after the first, mean ms"


def row(raw: Raw, table: int, name: str) -> list[str]:
    (found,) = [list(r) for r in published(raw).tables[table].rows if r[0] == name]
    return found


def without(*names: str) -> Raw:
    return Raw({name: results for name, results in made().results.items() if name not in names})


def test_a_time_of_theirs_stands_beside_one_of_ours() -> None:
    raw: Any = made()
    assert row(raw, 0, "call, p99 ms")[1:4] == ["622", "392", "-36.9%"]
    # The published load goes before the same rate in the sweep.
    assert row(raw, 0, "call, p99 ms")[5] == "25.5"
    assert row(without("score_load.json", "score_load-more.json"), 0, "call, p99 ms")[5] == "6.5"
    assert row(raw, 0, "one prompt of 300 tokens alone, ms")[5] == "2.25"
    # An ablation's change: from the arm that lacks it, 1.25 x 1.25 ms, to ours.
    assert row(raw, 1, "delimiters, alone, ms a call")[4:7] == ["1.56", "1.25", "-20.0%"]


def test_a_window_with_failed_calls_is_not_compared() -> None:
    raw: Any = without("serving.json")
    raw.results["score_load.json"]["points"][0]["failed"] = 1
    assert row(raw, 0, "call, p99 ms")[5] == ""


def test_a_served_benchmark_goes_before_one_in_process() -> None:
    assert row(made(), 2, MEAN)[1:7] == ["33.9", "32.1", "-5.4%", "24.5", "12.2", "-50.0%"]
    assert row(without("decode_serving.json"), 2, MEAN)[4:7] == ["2.5", "2", "-20.0%"]
    assert row(without("decode_serving.json", "decode-tiny.json"), 2, MEAN)[4:7] == ["", "", ""]


def test_the_machine_is_named() -> None:
    assert "Some GPU" in published(made()).text[-1]
    assert "no GPU" in published(Raw({})).text[-1]
