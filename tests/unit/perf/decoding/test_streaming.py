"""`decode` under perf_analyzer: windows keep their exports, a failed one stops no other."""

import gzip
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.decoding import streaming as decode_serving
from perf.decoding.streaming import Windows
from perf.decoding.streaming_plan import CPU, GPU, Lengths
from perf.loadgen import perf_analyzer as analyzer
from perf.loadgen.perf_analyzer import Analyzer
from perf.loadgen.window_validity import UnsoundLoad
from tests.unit.perf.loadgen.exports import exported


class FakeTool:
    """perf_analyzer as a process: answers every request of its data file, in the order of the file."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        given = {
            name: command[command.index(name) + 1] for name in command if f"{name} " in "--input-data -f "
        }
        entries = json.loads(Path(given["--input-data"]).read_text())["data"]
        count = int(command[command.index("--request-count") + 1])
        tokens = int(next(part for part in command if part.startswith("max_tokens:")).split(":")[1])
        requests = []
        for index in range(count):
            ids = entries[index % len(entries)]["input_ids"]["content"]
            # Tokens that follow from the prompt, a millisecond apart; requests follow each other.
            begin, last = 5 + index, range(tokens)
            responses = [(begin + 0.1 + i / 1e3, (sum(ids) * 31 + i * ids[0]) % 997) for i in last]
            requests.append(dict(exported(ids, begin, *responses).request))
        export = Path(command[command.index("--profile-export-file") + 1])
        export.write_text(json.dumps({"experiments": [{"experiment": {}, "requests": requests}]}))
        Path(given["-f"]).write_text("Concurrency\n")
        return subprocess.CompletedProcess(command, 0, "", "")


class NoGpu:
    def busy(self, begin: float, end: float) -> None:
        return None

    memory_gib = busy


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Windows:
    tool = FakeTool()
    monkeypatch.setattr(analyzer.subprocess, "run", tool)
    chosen = replace(CPU, factor=1 / 256)
    found = Windows(chosen, Analyzer("host:1", tmp_path / "log", tmp_path / "exports"), NoGpu())  # type: ignore[arg-type]
    found.tool = tool  # type: ignore[attr-defined]
    return found


def test_a_window_keeps_its_export_without_tensors(windows: Windows, tmp_path: Path) -> None:
    windows.warm_up()
    windows.benchmark(32)
    assert windows.failures == []
    assert [path.name for path in sorted((tmp_path / "exports").iterdir())] == [
        "32-in-6-out-5-at-once-ring-of-32.csv",
        "32-in-6-out-5-at-once-ring-of-32.json.gz",
    ]
    kept = json.loads(
        gzip.decompress((tmp_path / "exports/32-in-6-out-5-at-once-ring-of-32.json.gz").read_bytes())
    )
    (experiment,) = kept["experiments"]
    assert len(experiment["requests"]) == CPU.count
    assert experiment["requests"][0].keys() == {"timestamp", "response_timestamps"}
    (window,) = windows.found
    assert window["agreement"] == 1
    assert window["tpot"]["mean"] == pytest.approx(1)
    assert window["ttft"]["p50"] == pytest.approx(100)
    assert all("--streaming" in command for command in windows.tool.commands)  # type: ignore[attr-defined]


def test_a_failed_window_stops_no_other(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_serving, "MIN_CALLS", CPU.count + 1)
    windows.benchmark(32)
    assert len(windows.failures) == 1
    assert UnsoundLoad.__name__ in windows.failures[0]
    assert windows.found == []
    monkeypatch.undo()


def test_the_published_benchmark_is_the_default_and_scales() -> None:
    assert (GPU.benchmark, GPU.count, GPU.at_once, GPU.factor) == (Lengths(8_192, 1_500), 30, 5, 1.0)
    assert Lengths(8_192, 1_500).times(0.5) == Lengths(4_096, 750)
    assert Lengths(8, 2).times(1 / 100) == Lengths(1, 2)
