"""The report: made of the raw results alone, complete in itself, and another one for other numbers."""

import copy
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from perf.report import page as report_html
from perf.report import request_stages as stages
from perf.report.page import SECTIONS, read, render, sections
from perf.report.parts import Raw
from perf.report.published_section import published

RECORDED = Path(__file__).parents[4] / "perf/results/h200"
INTERVAL = {"median": 1.25, "low": 1.125, "high": 1.375}
ARMS = {"arms": {"ours": {"value": INTERVAL, "ratio": INTERVAL, "largest_difference": 0.0}}}


def shown(raw: Raw) -> str:
    """The report's text without its figures."""
    return re.sub(r'src="data:image/png;base64,[^"]+"', "", unescape(render("A title", sections(raw))))


def changed(raw: Raw, file: str, change: Any) -> Raw:
    results = copy.deepcopy(dict(raw.results))
    change(results[file])
    return Raw(results, raw.analyzer_log)


def test_it_is_one_small_file_that_asks_for_nothing(tmp_path: Path) -> None:
    shutil.copytree(RECORDED, tmp_path / "run")
    file = report_html.write(tmp_path / "run")
    html = file.read_text()
    assert len(html) < 2_000_000
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(sources) >= 8
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert not re.search(r"<script|<link|@import|url\(", html)
    figures = {path.name for path in (tmp_path / "run/plots").iterdir()}
    assert {"open-loop.png", "closed-loop.png", "ablations.png", "time-of-a-call.png"} <= figures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "run/plots").iterdir())
    assert sources.count("#s0") == 1
    assert html.count("data:image/png") == len(figures)


def test_its_numbers_are_the_raw_ones_and_change_with_them() -> None:
    raw = read(RECORDED)
    before = shown(raw)
    point = next(p for p in raw.results["serving.json"]["points"] if p["name"] == "Poisson 70/s")
    assert f"<td>{point['p99']:.3g}</td>" in before

    def slower(serving: Any) -> None:
        next(p for p in serving["points"] if p["name"] == "Poisson 70/s")["p99"] = 98_765.0

    after = changed(raw, "serving.json", slower)
    assert "<td>98,765</td>" in shown(after)
    assert "<td>98,765</td>" not in before
    figures = [
        {name: data for s in sections(r) for name, data in s.figures.items()} for r in (raw, raw, after)
    ]
    assert figures[0] == figures[1]
    assert {name for name in figures[0] if figures[0][name] != figures[2][name]} == {"open-loop"}


def load_of(serving: Any, more: str = "") -> dict[str, Any]:
    """A result of perf.scoring.score_load, of windows of perf.scoring.serving."""
    points = [
        {**point, "name": point["name"] + more, "gpu_memory_gib": 12.5}
        for point in serving["points"]
        if point["group"] == "open"
    ]
    request, load = serving["plan"]["request"], {"seconds": {"fresh": 120}}
    return {"plan": {"request": request}, "load": load, "points": points, "failures": [f"none{more}"]}


def streams(group: str, per_token: float) -> dict[str, Any]:
    """A window of perf.decoding.streaming."""
    times = dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "worst"), per_token)
    return {
        "group": group,
        "name": f"8 in, 2 out, {group}",
        **dict.fromkeys(("streams", "failed"), 5),
        **dict.fromkeys(("output_tokens_per_s", "input_tokens_per_s", "tokens_per_response"), 2.5),
        **dict.fromkeys(("ttft", "tpot", "itl", "end_to_end"), times),
        **dict.fromkeys(("gpu_busy", "agreement"), 1.0),
    }


def test_published_numbers_stand_beside_ours() -> None:
    """A time of theirs and of ours, each with its change; a served benchmark goes before one in process."""
    raw = read(RECORDED)

    def row(raw: Raw, table: int, name: str) -> list[str]:
        (found,) = [list(r) for r in published(raw).tables[table].rows if r[0] == name]
        return found

    assert row(raw, 0, "call, p99 ms")[1:4] == ["622", "392", "-36.9%"]
    point = next(
        p for p in raw.results["score_load.json"]["points"] if p["name"] == "fresh ids, Poisson 70/s"
    )
    assert row(raw, 0, "call, p99 ms")[5] == f"{point['p99']:.3g}"
    assert row(raw, 1, "delimiters, alone, ms a call")[6] == "-3.9%"
    mean = "per token after the first, mean ms"
    assert row(raw, 2, mean)[1:7] == ["33.9", "32.1", "-5.4%", "3.27", "3.02", "-7.8%"]
    in_process = Raw({name: found for name, found in raw.results.items() if name != "decode_serving.json"})
    assert row(in_process, 2, mean)[4:7] == ["2.92", "2.73", "-6.3%"]
    windows = [streams("benchmark, blocking", 8.0), streams("benchmark, ring", 6.0)]
    served = Raw({**raw.results, "decode_serving.json": {"windows": windows}})
    assert row(served, 2, mean)[4:7] == ["8", "6", "-25.0%"]
    assert "NVIDIA H200" in published(raw).text[-1]
    assert "no GPU" in published(Raw({})).text[-1]


def test_a_failed_step_stands_in_the_report() -> None:
    raw = read(RECORDED)
    # A run whose text windows could not be read: score_load-text.json has them.
    assert shown(raw).count("FAILED") == 3 == shown(raw).count("FAILED: fresh text")
    failed = changed(raw, "serving.json", lambda serving: serving["failures"].append("text: <b>wrong</b>"))
    html = render("A title", sections(failed))
    assert "<p class=failed>FAILED: text: &lt;b&gt;wrong&lt;/b&gt;</p>" in html


def test_every_section_has_something_to_say_of_its_own_file() -> None:
    """One made-up result of every kind: a section that reads a name nobody writes would be left out."""
    sizes = {"staging": 2**30, "home": 2**31, "hits": 8}
    decoded = {
        "device_bytes": sizes,
        "ratio": INTERVAL,
        "tpot_ms": 1.0,
        "itl_p99_ms": 2.0,
        "ttft_ms": 3.0,
        "hit_rate": 0.5,
    }
    recorded = read(RECORDED)
    raw = Raw(
        {
            **recorded.results,
            "score_load.json": load_of(recorded.results["serving.json"]),
            "score_load-more.json": load_of(recorded.results["serving.json"], ", more"),
            "decode_serving.json": {
                "settings": {"selector": "quest", "sparse_top_k": 64, "device_buffer_size": 128},
                "failures": ["a window: too late"],
                "windows": [
                    streams("benchmark, blocking", 24.5),
                    streams("benchmark, ring", 12.25),
                    streams("sweep", 1),
                ],
            },
            "quality_served.json": {
                "reviews": 30,
                "dtype": "float32",
                "reference_dtype": "float32",
                **{
                    name: {"value": 0.75, "low": 0.5, "high": 1.0}
                    for name in ("auc", "auc_transformers", "auc_gain")
                },
                **dict.fromkeys(("largest_difference", "mean_difference", "control"), 0.125),
                **dict.fromkeys(("spearman", "same_best_of_ten"), 1.0),
                "prompt_tokens": 1_234,
                "cached_tokens": 56,
            },
            "decode_quality.json": json.loads((RECORDED.parent / "cpu/decode_quality.json").read_text()),
            "peers.json": {"what": "w", "groups": {"one call": ARMS}, "skipped": ["vllm: not here"]},
            "roofline.json": {
                "dtype": "bfloat16",
                "matmul": [{"shape": "8 x 8 x 8", "flops": 7e12}],
                "copy": [{"what": "read", "mib": 64, "bytes_per_s": 3e9}],
                "forwards": [{"name": "one call", "seconds": 0.5, "flop": 1e12, "weight_bytes": 10**9}],
            },
            "decode-tiny.json": {
                "geometry": "tiny",
                "load": {"streams": 3, "prompt": 4, "tokens": 5},
                "groups": {"backup": {"ring": decoded}, "broken": {"error": "RuntimeError: no"}},
            },
            "quality.json": {
                "reviews": 20,
                "prompt": "shots",
                "rows": [
                    {
                        "dtype": "float32",
                        "auc": {"value": 0.9, "low": 0.8, "high": 1.0},
                        "auc_gain": {"value": 0.0, "low": 0.0, "high": 0.0},
                        "largest_difference": 0.0,
                        "spearman": 1.0,
                        "between_batches": 0.0,
                    }
                ],
            },
            "cpu_cost.json": {
                "said": ["s"],
                "rows": [{"what": "tokenizer", "value": 12_345.0, "unit": "tokens/s"}],
                "memory": [{"calls": n, "rss_mib": 100.0, "shm_mib": 2.0} for n in (0, 10)],
            },
        },
        recorded.analyzer_log,
    )
    assert [
        section.title for section in sections(raw) if not (section.tables and section.tables[0].rows)
    ] == []
    assert len(sections(raw)) == len(SECTIONS)
    html = shown(raw)
    for said in (
        "vllm: not here",
        "12,345 tokens/s",
        "7 TFLOP/s",
        "29%",
        "backup",
        "RuntimeError: no",
        "0.900 [0.800",
        "FAILED: a window: too late",
        "FAILED: none, more",
        "/s, more</td>",
        "/s, more (score_load)</td>",
        "56 of 1,234",
        "0.750 [0.500",
        "quest 128, page 16",
        "<td>12.5</td>",
        "-50.0%",
    ):
        assert said in html, said


def test_stages_add_up_to_what_the_client_waited() -> None:
    forward = json.loads((RECORDED / "forward.json").read_text())
    found = stages.read((RECORDED / "perf-analyzer.txt").read_text(), forward)
    assert found.keys() == {"one prompt", "one call"}
    assert sum(found["one call"].values()) == pytest.approx(5.615)
    assert found["one call"]["forward, GPU"] == forward["1 x (120 + 10 x 180)"]["gpu_ms"]
    assert min(value for parts in found.values() for value in parts.values()) > 0
    alone = stages.read((RECORDED / "perf-analyzer.txt").read_text(), {})
    assert alone["one call"]["execute"] == pytest.approx(5.086)


@pytest.mark.parametrize("directory", sorted(file.parent for file in RECORDED.parent.glob("*/report.html")))
def test_a_recorded_report_says_what_its_results_say(directory: Path) -> None:
    written = re.sub(
        r'src="data:image/png;base64,[^"]+"', "", unescape((directory / "report.html").read_text())
    )
    found = sections(read(directory))
    now = re.sub(r'src="data:image/png;base64,[^"]+"', "", unescape(render("", found)))
    body = "</h1>"
    assert written.split(body)[1] == now.split(body)[1], (
        f"python -m perf.report.page {directory} writes it anew"
    )
    assert {f"{name}.png" for s in found for name in s.figures} == {
        p.name for p in (directory / "plots").iterdir()
    }


def test_nothing_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no result"):
        report_html.write(tmp_path)
