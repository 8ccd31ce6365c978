"""NVIDIA's perf_analyzer drives `score`, `scorer` and `decode`; what it exports is what the models answered."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from perf.loadgen.analyzer_decode import Prompts, summarise
from perf.loadgen.analyzer_scoring import by_text
from perf.loadgen.perf_analyzer import Analyzer
from perf.loadgen.token_check import FirstTokens
from perf.loadgen.window import WrongScores
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


@pytest.fixture
def analyzer(
    perf_analyzer: list[str], lm: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Analyzer:
    monkeypatch.setenv("PERF_ANALYZER", perf_analyzer[0])
    monkeypatch.setenv("PYTHON", sys.executable)
    return Analyzer(lm.grpc_url, tmp_path / "log.txt", tmp_path / "exports")


def test_its_streams_hold_the_tokens_that_decode_gives(
    analyzer: Analyzer, lm: Server, tmp_path: Path
) -> None:
    prompts = Prompts([[20 + i, 30 + 2 * i, 40, 50 + i] for i in range(6)], max_tokens=9)
    found = prompts.read(analyzer.closed_loop("streams", prompts.target, 3, 12))
    assert sorted(stream.prompt for stream in found) == sorted([*range(6)] * 2)
    with ScoreClient(lm.grpc_url) as client:
        expected = [
            [
                token
                for chunk in client.generate(list(ids), max_tokens=9, ignore_eos=True)
                for token in chunk.token_ids
            ]
            for ids in prompts.ids
        ]
    assert [stream.ids for stream in found] == [expected[stream.prompt] for stream in found]
    served = summarise("streams", found, 4)
    assert served.failed == 0
    assert 0 < served.ttft.p50 < served.end_to_end.p50
    assert served.itl.worst <= served.end_to_end.worst
    assert (tmp_path / "exports/streams.csv").read_text().startswith("Concurrency")
    # Control: the same streams under each other's names.
    first = FirstTokens()
    first.agreement("pool", found, 9)
    shifted = Prompts([*prompts.ids[1:], prompts.ids[0]], 9)
    with pytest.raises(WrongScores, match="agree with what they got first"):
        first.agreement("pool", shifted.read(analyzer.closed_loop("", prompts.target, 3, 12)), 9)


def test_its_scores_by_text_are_those_of_the_client(analyzer: Analyzer, lm: Server) -> None:
    # In the export a text follows its length in bytes: from 128 on these are not UTF-8.
    texts = [(f"{number}: one two three" * 9, [" four", " five six" * 20, ""]) for number in range(8)]
    scoring = by_text(texts, (7, 9))
    arrivals = [0.02 * number for number in range(16)]
    found = scoring.samples(analyzer.open_loop("text", scoring.target, arrivals))
    assert sorted(sample.message for sample in found) == sorted([*range(8)] * 2)
    assert [sample.intended for sample in found] == pytest.approx(
        [found[0].intended + at for at in arrivals], abs=1e-6
    )
    with ScoreClient(lm.grpc_url) as client:
        for sample in found:
            query, items = texts[sample.message]
            expected = client.score(query, items, label_token_ids=[7, 9], apply_softmax=True).scores
            assert sample.scores is not None
            # The contract's tolerance in float32, for any batch.
            assert abs(sample.scores - expected).max() <= 2e-5
