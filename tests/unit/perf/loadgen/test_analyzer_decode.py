"""perf_analyzer's export to numbers: streams and calls are told apart, times are those of the export."""

import gzip
import json
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.decoding import streaming as decode_serving
from perf.decoding.streaming import CPU, GPU, Lengths, Windows
from perf.loadgen import perf_analyzer as analyzer
from perf.loadgen.analyzer_decode import Generation, Prompts, as_samples, per_token, summarise, times
from perf.loadgen.analyzer_scoring import by_ids, by_text
from perf.loadgen.perf_analyzer import Analyzer, Exported
from perf.loadgen.scorer_calls import Shape, draw
from perf.loadgen.token_check import LEAD, FirstStreams
from perf.loadgen.window import WrongScores
from perf.loadgen.window_validity import UnsoundLoad

S = 1_000_000_000
PROMPTS = Prompts([[1, 2, 3], [4, 5, 6]], max_tokens=4)


def exported(
    prompt: list[int], at: float, *responses: tuple[float, Any], due: float | None = None
) -> Exported:
    """A stream as perf_analyzer writes it: one token is no list, none is no output."""
    outputs = [{"output_ids": ids, "finish_reason": ""} if ids != [] else {} for _, ids in responses]
    outputs[-1]["finish_reason"] = "length"
    request = {
        "timestamp": int(at * S),
        "request_inputs": {"input_ids": prompt},
        "response_timestamps": [int(time * S) for time, _ in responses],
        "response_outputs": outputs,
    }
    return Exported(at if due is None else due, request)


TWO = [
    exported([4, 5, 6], 10.0, (10.5, 7), (10.6, [8, 9]), (10.7, 3), (10.8, [])),
    exported([1, 2, 3], 11.0, (11.3, 5), (11.5, 6), (11.6, 1), (11.7, 2), due=10.9),
]


def test_an_export_becomes_streams() -> None:
    first, second = PROMPTS.read(TWO)
    assert (first.prompt, first.ids, first.finish_reason) == (1, [7, 8, 9, 3], "length")
    assert first.arrivals == pytest.approx([10.5, 10.6, 10.7])  # the empty last response is no token
    assert second.ids == [5, 6, 1, 2]
    with pytest.raises(KeyError):
        PROMPTS.read([exported([9, 9, 9], 1.0, (2.0, 1))])


def test_a_streams_numbers() -> None:
    served = summarise("a window", PROMPTS.read(TWO), prompt=3)
    assert served.seconds == pytest.approx(1.7)
    assert served.output_tokens_per_s == pytest.approx(8 / 1.7)
    assert served.input_tokens_per_s == pytest.approx(6 / 1.7)
    assert served.ttft.mean == pytest.approx((500 + 400) / 2)  # the second was due 0.1 s before it was sent
    # 0.2 s for three tokens after the first response, 0.4 s for three.
    assert served.tpot.mean == pytest.approx(1e3 * (0.2 / 3 + 0.4 / 3) / 2)
    assert served.itl.worst == pytest.approx(200)
    assert served.tokens_per_response == pytest.approx(8 / 7)
    assert served.concurrency == pytest.approx((0.7 + 0.8) / 1.7)
    assert served.late_p99 == pytest.approx(100, rel=0.02)


def test_streams_that_did_not_end_well_are_failures() -> None:
    good, bad = PROMPTS.read(TWO)
    cancelled = replace(bad, finish_reason="cancelled")
    served = summarise("a window", [good, cancelled], prompt=3)
    assert (served.streams, served.failed) == (2, 1)
    assert [sample.error for sample in as_samples([good, cancelled])] == ["", "ended by 'cancelled'"]
    with pytest.raises(RuntimeError, match="no stream ended"):
        summarise("a window", [cancelled], prompt=3)
    with pytest.raises(ValueError, match="no time"):
        times([])


def test_tokens_of_the_first_response_are_not_waited_for() -> None:
    stream = Generation(0, 0.0, 0.0, [1.0, 2.0], [[1, 2, 3], [4, 5]], "length")
    assert per_token(stream) == 0.5


def streams(count: int, tokens: int = 12, seed: int = 0) -> list[Generation]:
    rng = np.random.default_rng(seed)
    return [
        Generation(i, 0.0, 0.0, [1.0], [rng.integers(0, 1_000, tokens).tolist()], "length")
        for i in range(count)
    ]


def test_tokens_are_held_against_the_prompts_first_ones() -> None:
    first, found = FirstStreams(), streams(10)
    assert first.agreement("pool", found, 12) is None
    assert first.agreement("pool", found, 12) == 1
    # One that flips a token late agrees up to there.
    flipped = replace(found[0], tokens=[[*found[0].ids[: LEAD // 2], -1, *found[0].ids[LEAD // 2 + 1 :]]])
    assert first.agreement("pool", [flipped, *found[1:]], 12) == pytest.approx(0.95)
    with pytest.raises(WrongScores, match="agree with what they got first in 0%"):
        first.agreement("pool", [replace(s, tokens=o.tokens) for s, o in pairwise(found)], 12)
    assert first.agreement("another pool", streams(10, seed=1), 12) is None


def test_a_stream_of_another_length_fails() -> None:
    with pytest.raises(WrongScores, match="has 12 tokens, asked for 13"):
        FirstStreams().agreement("pool", streams(3), 13)


def test_prompts_that_get_the_same_tokens_prove_nothing() -> None:
    same = [replace(stream, tokens=streams(1)[0].tokens) for stream in streams(4)]
    with pytest.raises(WrongScores, match="would not show"):
        FirstStreams().agreement("pool", same, 12)


def test_calls_are_told_apart_by_ids_and_by_text() -> None:
    calls = draw(np.random.default_rng(0), Shape(4, 2, 3), 5, 100, (9, 7))
    texts = [(f"query {i}", ["a", "b"]) for i in range(5)]
    asked = [{"input_ids": calls[3].tensors()["input_ids"].tolist()}, {"query": "query 3"}]
    for scoring, inputs in zip((by_ids(calls), by_text(texts, (9, 7))), asked, strict=True):
        answer = {"scores": [0.25, 0.75, 0.5, 0.5], "usage": [10, 0]}
        request = {
            "timestamp": 2 * S,
            "request_inputs": inputs,
            "response_timestamps": [3 * S],
            "response_outputs": [answer],
        }
        (sample,) = scoring.samples([Exported(1.5, request)])
        assert (sample.message, sample.intended, sample.sent, sample.done) == (3, 1.5, 2.0, 3.0)
        assert sample.scores is not None
        assert sample.scores.shape == (2, 2)
        (lost,) = scoring.samples([Exported(1.5, {**request, "response_timestamps": []})])
        assert lost.error
    with pytest.raises(ValueError, match="have 1 queries"):
        by_text([texts[0]] * 2, (9, 7))


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
    windows.benchmark("ring")
    assert windows.failures == []
    assert [path.name for path in sorted((tmp_path / "exports").iterdir())] == [
        "32-in-6-out-5-at-once-ring.csv",
        "32-in-6-out-5-at-once-ring.json.gz",
    ]
    kept = json.loads(gzip.decompress((tmp_path / "exports/32-in-6-out-5-at-once-ring.json.gz").read_bytes()))
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
    windows.benchmark("ring")
    assert len(windows.failures) == 1
    assert UnsoundLoad.__name__ in windows.failures[0]
    assert windows.found == []
    monkeypatch.undo()


def test_the_published_benchmark_is_the_default_and_scales() -> None:
    assert (GPU.benchmark, GPU.count, GPU.at_once, GPU.factor) == (Lengths(8_192, 1_500), 30, 5, 1.0)
    assert Lengths(8_192, 1_500).times(0.5) == Lengths(4_096, 750)
    assert Lengths(8, 2).times(1 / 100) == Lengths(1, 2)
