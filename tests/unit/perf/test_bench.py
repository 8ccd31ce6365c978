"""`make bench`: a step that fails stops no other, and is named in the report."""

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf import bench, bench_process, bench_steps
from perf.bench_steps import Given, Step, missing

RESULTS = {"device": "a GPU", "a batch": {"gpu_ms": 1.0, "launch_ms": 1.0, "total_ms": 1.0}}


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let steps run a module that needs no model, and the report have something to read."""
    for name in ("good", "lost"):
        monkeypatch.setitem(bench_steps.MODULES, name, "compare")
    (tmp_path / "forward.json").write_text(json.dumps(RESULTS | {"dtype": "bfloat16"}))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs some steps with arguments of the command line behind the directory of results."""

    def run(steps: list[Step], *arguments: str, out: str = ".") -> int:
        monkeypatch.setattr(bench, "resolve", lambda: tmp_path)
        monkeypatch.setattr(bench_steps, "cpu_steps", lambda given: steps)
        monkeypatch.setattr(sys, "argv", ["bench", "--out", str(tmp_path / out), *arguments])
        return bench.main()

    return run


def good(tmp_path: Path, seconds: float = 5, name: str = "a good one") -> Step:
    """Compares a file with itself."""
    return Step(name, "good", (str(tmp_path / "forward.json"),) * 2, seconds)


def steps(tmp_path: Path) -> list[Step]:
    return [Step("a lost one", "lost", (str(tmp_path / "nowhere"),) * 2, 5), good(tmp_path)]


def test_a_failed_step_stops_no_other_and_is_reported(tmp_path: Path, run: Callable[..., int]) -> None:
    assert run(steps(tmp_path)) == 1
    done = json.loads((tmp_path / "bench.json").read_text())["steps"]
    assert [(step["name"], step["code"]) for step in done] == [("a lost one", 2), ("a good one", 0)]
    assert "cannot compare" in (tmp_path / "logs/a-lost-one.txt").read_text()
    report = (tmp_path / "report.md").read_text()
    assert "- **FAILED**: a lost one" in report
    assert "a good one" not in report

    assert run(steps(tmp_path), "--only", "good") == 0
    # What an earlier run left in the directory is still there.
    assert "- **FAILED**: a lost one" in (tmp_path / "report.md").read_text()
    assert run(steps(tmp_path), "--only", "goo") == 2


def test_every_step_is_a_module_of_perf(tmp_path: Path) -> None:
    given = Given(tmp_path, tmp_path, tmp_path)
    every = [*bench_steps.cpu_steps(given), *bench_steps.gpu_steps(given, 2)]
    assert {step.measurement for step in every} >= {
        "serving",
        "text_cost",
        "ablations",
        "decode",
        "quality",
        "quality_served",
        "decode_serving",
        "score_load",
        "two_gpus",
    }
    assert all(find_spec(step.module) for step in every)
    names = [step.name for step in bench_steps.gpu_steps(given, 2)]
    assert len(set(names)) == len(names)  # a name is a log file
    assert "several GPUs" not in [step.name for step in bench_steps.gpu_steps(given, 1)]


def test_a_step_that_hangs_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]
) -> None:
    """A file to read that nobody writes; the step after it still runs."""
    os.mkfifo(tmp_path / "never.json")
    hanging = Step("a hanging one", "good", (str(tmp_path / "never.json"),) * 2, 0.0)
    monkeypatch.setattr(bench_process, "MORE_S", 0.3)
    # The other one has all the time that it needs.
    monkeypatch.setattr(bench_process, "TIMES_PLANNED", 100.0)
    assert run([hanging, good(tmp_path)], out="out") == 1
    done = json.loads((tmp_path / "out/bench.json").read_text())["steps"]
    assert [step["code"] for step in done] == [bench_process.TIMED_OUT, 0]
    assert "stopped after" in (tmp_path / "out/logs/a-hanging-one.txt").read_text()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    every = bench_steps.gpu_steps(Given(tmp_path, None, None), 1)
    named = {step.measurement for step in every if missing(step, Given(tmp_path, None, None))}
    assert named == {"quality", "quality_served", "score_load", "serving", "text_cost", "cpu_cost"}
    with_tokenizer = {step.measurement for step in every if missing(step, Given(tmp_path, None, tmp_path))}
    assert with_tokenizer == {"quality", "quality_served"}
    assert not any(missing(step, Given(tmp_path, tmp_path, tmp_path)) for step in every)
