"""``hiscore calibrate`` against a small HTTP server that answers as a test says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hiscore.api.decisions.calibration import read_calibration
from hiscore_client.cli import calibrate as module
from tests.client.cli.command import run
from tests.support.http_server import Asked, answering

CHOICES = [{"value": "true"}, {"value": True}]
LINES = [
    {"input": "a", "questions": [
        {"type": "choice", "instructions": "b", "choices": CHOICES, "answer": True},
        {"type": "predicate", "instructions": "c", "answer": False},
    ]},
    {"input": "d", "questions": [
        {"type": "choice", "instructions": "b", "choices": CHOICES, "answer": "true"},
        {"type": "score", "instructions": "c", "levels": [{"label": "e"}, {"label": "f"}], "answer": 1},
    ]},
]  # fmt: skip


class FakeApi:
    """Gives every first option 0.8, and remembers requests."""

    url = ""
    status = 200

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []

    def answer(self, asked: Asked) -> tuple[int, str]:
        body = json.loads(asked.body)
        self.requests.append((asked.path, body, asked.headers["authorization"]))
        answers = [
            {"type": "predicate", "probability": 0.8}
            if each["type"] == "predicate"
            else {"type": each["type"], "probabilities": [{"probability": 0.8}, {"probability": 0.2}]}
            for each in body["questions"]
        ]
        found = {"answers": answers} if self.status == 200 else {"error": {"message": "too many"}}
        return self.status, json.dumps(found)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    with answering(api.answer) as address:
        api.url = f"http://{address}"
        yield api


def calibrate(api: FakeApi, lines: list[Any], *args: str) -> tuple[int, str, str]:
    stdin = "\n".join(map(json.dumps, lines)).encode()
    done = run("calibrate", "--api-url", api.url, *args, url="unused:1", stdin=stdin)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_temperatures_are_fitted_and_reported(api: FakeApi, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    code, report, warned = calibrate(api, LINES * 5, "--out", str(out), "--api-key", "mine")
    assert code == 0
    assert "10 questions of type choice are few to fit T on" in warned
    assert "choice" in report
    assert "predicate" in report
    assert len(api.requests) == 10
    for path, body, key in api.requests:
        assert (path, body["calibrated"], key) == ("/v1/decisions", False, "Bearer mine")
        assert not any("answer" in question for question in body["questions"])
    written = json.loads(out.read_text())
    assert written["report"]["choice"]["questions"] == 10
    # Half of the choices are right at 0.8; all predicates and scores are wrong.
    assert written["report"]["choice"]["accuracy"] == 0.5
    assert written["report"]["choice"]["ece"] == pytest.approx(0.3)
    assert written["report"]["choice"]["ece_calibrated"] == pytest.approx(0, abs=0.01)
    assert written["report"]["predicate"]["accuracy"] == 0
    assert set(read_calibration(out)) == {"choice", "predicate", "score"}


def test_debias_is_passed_on(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH", 1)
    code, _, warned = calibrate(api, LINES, "--debias", "rotations")
    assert (code, "few" in warned) == (0, False)
    assert api.requests[0][1]["debias"] == "rotations"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (7, "line 1 must be a request"),
        ({"input": "a"}, "line 1 must be a request"),
        ({"input": "a", "questions": [{"type": "predicate"}]}, "line 1, question 0: 'answer'"),
        ({"input": "a", "questions": [{"type": "predicate", "answer": 1}]}, "not 1"),
        ({"input": "a", "questions": [{"type": "choice", "choices": CHOICES, "answer": "True"}]}, "not \"True\""),
        ({"input": "a", "questions": [{"type": "score", "levels": [{}], "answer": 1}]}, "not 1"),
    ],
)  # fmt: skip
def test_a_line_without_its_answer_is_refused(api: FakeApi, line: Any, names: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code, _, error = calibrate(api, [line], "--out", str(out))
    assert code == 2
    assert names in error
    assert not out.exists()


def test_failures_have_their_exit_codes(api: FakeApi, dead_url: str) -> None:
    assert calibrate(api, [])[0] == 2
    for status, code in ((429, 4), (400, 2), (500, 1)):
        api.status = status
        found, _, error = calibrate(api, LINES)
        assert (found, "too many" in error) == (code, True)
    api.url = f"http://{dead_url}"
    assert calibrate(api, LINES)[0] == 3
