"""The report: made of the raw results alone, complete in itself, and another one for other numbers."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from perf.report import page
from perf.report.page import SECTIONS, render, sections
from perf.report.parts import Picture, Raw
from tests.unit.perf.report.made_results import ANALYZER_LOG, RESULTS, made

pytestmark = pytest.mark.usefixtures("undrawn")


def shown(raw: Raw) -> str:
    """The report's text without its figures."""
    return re.sub(r'src="data:image/png;base64,[^"]+"', "", unescape(render("A title", sections(raw))))


def figures(raw: Raw) -> dict[str, Picture]:
    return {name: data for section in sections(raw) for name, data in section.figures.items()}


def open_loop(raw: Raw) -> Any:
    return next(p for p in raw.results["serving.json"]["points"] if p["name"] == "Poisson 70/s")


def test_it_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    for name, results in RESULTS.items():
        (tmp_path / name).write_text(json.dumps(results))
    (tmp_path / "a-list.json").write_text("[]")
    (tmp_path / "perf-analyzer.txt").write_text(ANALYZER_LOG)
    html = page.write(tmp_path).read_text()
    assert "<h1>hiscore on Some GPU</h1>" in html
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert not re.search(r"<script|<link|@import|url\(", html)
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"open-loop.png", "closed-loop.png", "ablations.png", "time-of-a-call.png"} <= drawn
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())
    assert sources.count("#s0") == 1
    assert html.count("data:image/png") == len(drawn)
    said = re.findall(r'<img alt="([^"]*)"', html)
    assert len(said) == len(drawn)
    assert all(len(text.split()) > 3 for text in said)


def test_its_numbers_are_the_raw_ones_and_change_with_them() -> None:
    raw, slower = made(), made()
    open_loop(slower)["p99"] = 98_765.0
    assert "<td>6.5</td>" in shown(raw)
    assert "<td>98,765</td>" not in shown(raw)
    assert "<td>98,765</td>" in shown(slower)
    before, again, after = figures(raw), figures(made()), figures(slower)
    assert before == again
    assert {name for name in before if before[name] != after[name]} == {"open-loop"}


def test_latency_beyond_saturation_is_told_and_not_drawn() -> None:
    raw, kept_up = made(), made()
    point = open_loop(raw)
    point["rate"] = 0.5 * point["offered"]
    assert f"Not drawn: {point['name']}" in shown(raw)
    assert "Not drawn" not in shown(kept_up)
    assert figures(raw).get("open-loop") != figures(kept_up)["open-loop"]


def test_failures_stand_in_the_report() -> None:
    raw = made()
    text = shown(raw)
    for line in (
        "fresh text: lost",
        "a window: too late",
        "tiny, broken: RuntimeError: no",
        "a lost step (python -m perf.x), exit code 3",
    ):
        assert f"<p class=failed>FAILED: {line}</p>" in text
    assert text.count("FAILED") == 4
    assert "Not run: a long step: no time" in text
    assert "a good step" not in text
    raw.results["serving.json"]["failures"].append("text: <b>wrong</b>")
    html = render("A title", sections(raw))
    assert "<p class=failed>FAILED: text: &lt;b&gt;wrong&lt;/b&gt;</p>" in html


def test_every_section_has_something_to_say_of_its_own_file() -> None:
    """A section that reads a name that nobody writes would be left out."""
    found = sections(made())
    assert [section.title for section in found if not (section.tables and section.tables[0].rows)] == []
    assert len(found) == len(SECTIONS)
    html = shown(made())
    for said in (
        "vllm: not here",
        "12,345 tokens/s",
        "7 TFLOP/s",
        "29.0%",
        "2.60 x",
        "backup",
        "0.750 [0.500",
        "/s, more</td>",
        "/s, more (score_load)</td>",
        "56 of 1,234",
        "quest 128, page 16",
        "<td>12.5</td>",
        "-50.0%",
        "2,345, 4 in flight",
        "50,000 tokens/s",
    ):
        assert said in html, said


def test_a_report_of_one_file_has_its_sections_alone() -> None:
    raw = Raw({"roofline.json": RESULTS["roofline.json"]})
    titles = [section.title for section in sections(raw)]
    assert titles == ["Beside published numbers", "Roofline", "Where the numbers come from"]


def test_nothing_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no result"):
        page.write(tmp_path)
