"""`make bench`: a step that fails stops no other, and is named in the report."""

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

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


def test_a_step_that_is_interrupted_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    started: list[Any] = []
    popen = bench_process.subprocess.Popen
    monkeypatch.setattr(
        bench_process.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_process.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt), Progress(console=Console(quiet=True)) as progress:
        bench_process.run(Step("slow", "quality", ("--help",), 60), tmp_path, progress)
    assert started[0].returncode is not None


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


def test_what_does_not_fit_is_not_started_and_is_done_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]
) -> None:
    both = [good(tmp_path), good(tmp_path, 50_000, "a long one")]
    assert run(both, "--minutes", "500") == 1
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [step["name"] for step in record["steps"]] == ["a good one"]
    assert record["not_run"][0].startswith("a long one: it needs 50000 s")
    assert "- Not run: a long one" in (tmp_path / "report.md").read_text()

    started: list[str] = []
    run_step = bench_process.run
    monkeypatch.setattr(bench, "run", lambda step, *more: started.append(step.name) or run_step(step, *more))
    assert run(both, "--resume") == 0
    assert started == ["a long one"]
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [step["name"] for step in record["steps"]] == ["a good one", "a long one"]


def test_an_interrupt_leaves_a_record_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]
) -> None:
    def interrupted(step: Step, *_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "run", interrupted)
    assert run(steps(tmp_path)) == 1
    (step,) = json.loads((tmp_path / "bench.json").read_text())["steps"]
    assert (step["name"], step["code"]) == ("a lost one", bench.INTERRUPTED)
    assert (tmp_path / "report.md").exists()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    every = bench_steps.gpu_steps(Given(tmp_path, None, None), 1)
    named = {step.measurement for step in every if missing(step, Given(tmp_path, None, None))}
    assert named == {"quality", "quality_served", "score_load", "serving", "trace", "text_cost", "cpu_cost"}
    with_tokenizer = {step.measurement for step in every if missing(step, Given(tmp_path, None, tmp_path))}
    assert with_tokenizer == {"quality", "quality_served"}
    assert not any(missing(step, Given(tmp_path, tmp_path, tmp_path)) for step in every)


def test_results_go_where_none_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    first = bench.directory_for("Intel(R) Xeon(R) CPU @ 2.20GHz")
    assert first.name.startswith("intel-xeon-cpu-2-20ghz-2")
    first.mkdir()
    assert bench.directory_for("Intel(R) Xeon(R) CPU @ 2.20GHz").name == f"{first.name}-2"
