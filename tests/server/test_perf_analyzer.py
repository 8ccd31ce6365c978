"""NVIDIA's perf_analyzer drives `score`, `scorer` and `decode`; what it exports is what the models answered."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.launcher import Server
from tests.server.analyzer import PERF, REQUESTS, drive
from tests.server.counters import counted
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

# It has parameters over gRPC alone.
SOFTMAX = "--request-parameter", "apply_softmax:true:bool"
STREAM = (
    "--streaming",
    "--request-parameter",
    "max_tokens:4:int",
    "--request-parameter",
    "ignore_eos:true:bool",
)


@pytest.mark.parametrize(
    ("model", "way", "more"),
    [
        ("score", "grpc", SOFTMAX),
        ("score", "http", ()),
        ("scorer", "grpc", SOFTMAX),
        ("scorer", "http", ("--async",)),
        ("tokenizer", "grpc", ("--async",)),
        ("decode", "grpc", STREAM),
    ],
)
def test_it_drives_the_model(
    model: str, way: str, more: tuple[str, ...], perf_analyzer: list[str], lm: Server, tmp_path: Path
) -> None:
    with counted(lm, {(model, "nv_inference_request_success"): REQUESTS}) as risen:
        drive(perf_analyzer, lm, model, tmp_path / "csv", *more, way=way)
    with (tmp_path / "csv").open() as file:
        (report,) = csv.DictReader(file)
    assert report["Concurrency"] == "2"
    assert float(report["Inferences/Second"]) > 0
    assert float(report["p99 latency"]) >= float(report["p50 latency"]) > 0
    assert risen[model, "nv_inference_request_success"] >= REQUESTS
    assert risen["scorer", "hiscore_items_total"] == 8 * risen["scorer", "nv_inference_request_success"]
    assert risen[model, "nv_inference_request_failure"] == 0
    assert risen["scorer", "nv_inference_request_failure"] == 0


def test_control_a_refused_parameter_is_seen(perf_analyzer: list[str], lm: Server, tmp_path: Path) -> None:
    with (
        counted(lm, {("score", "nv_inference_request_failure"): 1}) as risen,
        pytest.raises(AssertionError, match="unknown parameter 'aply_softmax'"),
    ):
        drive(perf_analyzer, lm, "score", tmp_path / "csv", "--request-parameter", "aply_softmax:true:bool")
    assert risen["score", "nv_inference_request_failure"] > 0


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "perf.loadgen.request_data", "--directory", tmp_path],
        cwd=PERF.parent,
        check=True,
        timeout=TIMEOUT_S,
    )
    for name in ("score.json", "scorer.json", "decode.json"):
        assert (tmp_path / name).read_text() == (PERF / "data" / name).read_text()
