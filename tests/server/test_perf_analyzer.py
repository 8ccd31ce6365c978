"""NVIDIA's perf_analyzer drives `score` and `scorer` from the data files of the repository."""

import csv
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.launcher import Server
from tests.server.counters import counted

pytestmark = pytest.mark.server

PERF = Path(__file__).resolve().parents[2] / "perf"
REQUESTS = 40
# The runner's exit code when it cannot install the tool.
UNAVAILABLE = 69


@pytest.fixture(scope="module")
def perf_analyzer() -> list[str]:
    command = [str(PERF / "perf-analyzer")]
    done = analyze(command, "--version")
    # Where it can be installed, not being able to is a failure.
    installable = platform.machine() == "x86_64" and (glibc() >= (2, 38) or shutil.which("apt-get"))
    if done.returncode == UNAVAILABLE and not installable:
        pytest.skip(f"perf_analyzer cannot be installed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "Perf Analyzer Version" in done.stdout + done.stderr
    return command


def glibc() -> tuple[int, ...]:
    return tuple(map(int, platform.libc_ver()[1].split(".")))


def analyze(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def drive(command: list[str], server: Server, model: str, report: Path, *more: str) -> str:
    done = analyze(
        command,
        *("-m", model, "-i", "grpc", "-u", server.grpc_url, "--concurrency-range", "2"),
        *("--input-data", str(PERF / "data" / f"{model}.json"), "--request-count", str(REQUESTS)),
        *("-f", str(report), *more),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("model", ["score", "scorer"])
def test_it_drives_the_model(model: str, perf_analyzer: list[str], lm: Server, tmp_path: Path) -> None:
    with counted(lm) as risen:
        drive(perf_analyzer, lm, model, tmp_path / "csv", "--request-parameter", "apply_softmax:true:bool")
    with (tmp_path / "csv").open() as file:
        (report,) = csv.DictReader(file)
    assert report["Concurrency"] == "2"
    assert float(report["Inferences/Second"]) > 0
    assert float(report["p99 latency"]) >= float(report["p50 latency"]) > 0
    assert risen[model, "nv_inference_request_success"] >= REQUESTS
    assert risen["scorer", "hiscore_items_total"] == 8 * risen["scorer", "nv_inference_request_success"]
    assert (
        risen[model, "nv_inference_request_failure"] == risen["scorer", "nv_inference_request_failure"] == 0
    )


@pytest.mark.slow
def test_control_a_refused_parameter_is_seen(perf_analyzer: list[str], lm: Server, tmp_path: Path) -> None:
    with counted(lm) as risen, pytest.raises(AssertionError, match="unknown parameter 'aply_softmax'"):
        drive(perf_analyzer, lm, "score", tmp_path / "csv", "--request-parameter", "aply_softmax:true:bool")
    assert risen["score", "nv_inference_request_failure"] > 0


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PERF / "make_data.py", "--directory", tmp_path], check=True, timeout=60)
    for name in ("score.json", "scorer.json"):
        assert (tmp_path / name).read_text() == (PERF / "data" / name).read_text()
