"""Log records: one line each, with the right fields, and nothing that a caller sent."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.edge.error_log import MAX_ID_LENGTH, ErrorLog, detail
from hiscore.errors import Code, RequestError
from hiscore.logs import JsonFormatter, TextFormatter, configure_model
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.scoring.text.labels import resolve_labels
from hiscore.settings import Limits

FACTS = CheckpointFacts(vocab_size=100, context_length=100, is_classifier=False)
FORGED = 'x"\n{"level": "INFO", "request_id": "forged"}'


def record(message: str = "a call", error: Exception | None = None, **fields: Any) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("hiscore.test", logging.WARNING, "", 0, message, (), exc_info)
    made.fields = fields  # type: ignore[attr-defined]
    return made


def refused_label(label: str) -> RequestError:
    with pytest.raises(RequestError) as raised:
        resolve_labels(TextRequest("", [], [label, label]), [[1], [1]], Limits(), FACTS)
    return raised.value


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    found: list[logging.LogRecord] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = found.append  # type: ignore[method-assign]
    log = logging.getLogger("hiscore.edge.error_log")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield found
    log.removeHandler(handler)
    log.setLevel(before)


@given(st.text(), st.text())
def test_a_line_of_json_holds_what_it_was_given(message: str, request_id: str) -> None:
    line = JsonFormatter({"model": "score"}).format(record(message, request_id=request_id))
    assert "\n" not in line
    assert line.isascii()
    read = json.loads(line)
    assert (read["message"], read["request_id"]) == (message, request_id)
    assert (read["level"], read["logger"], read["model"]) == ("WARNING", "hiscore.test", "score")
    assert read["time"].endswith("+00:00")


def test_a_traceback_stays_in_its_line() -> None:
    try:
        raise ValueError("of\ntwo lines")
    except ValueError as error:
        line = JsonFormatter({}).format(record(error=error))
    assert "\n" not in line
    assert json.loads(line)["traceback"].startswith("Traceback")


def test_text_for_people_says_when_in_utc() -> None:
    entry = record()
    entry.created = 1_700_000_000.25
    line = TextFormatter("%(asctime)s hiscore: %(message)s").format(entry)
    assert line == "2023-11-14T22:13:20.250Z hiscore: a call"


def test_an_id_cannot_begin_a_line_of_its_own() -> None:
    line = TextFormatter("hiscore: %(message)s").format(record(request_id=FORGED))
    assert line == f"hiscore: a call request_id={FORGED!r}"
    assert "\n" not in line
    # The control: as a message it would have.
    assert "\n" in TextFormatter("hiscore: %(message)s").format(record(FORGED))


def test_a_models_lines_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_model("json", "scorer")
        logging.getLogger("hiscore.x").warning("%d rows", 3)
        assert json.loads(capsys.readouterr().err)["model"] == "scorer"
        configure_model("text", "scorer")
        logging.getLogger("hiscore.x").warning("%d rows", 3)
        assert capsys.readouterr().err.endswith("Z hiscore WARNING hiscore.x: 3 rows\n")
    finally:
        root.handlers[:], root.level = before


@given(st.text(min_size=9, max_size=50))
def test_what_a_caller_sent_is_not_in_the_detail(label: str) -> None:
    error = refused_label(label)
    # The control: the caller himself is told.
    assert repr(label)[1:9] in error.message
    said = detail(error)
    assert label not in said
    module, _, line = said.rpartition(":")
    assert module == "hiscore.scoring.text.labels.resolve_labels"
    assert int(line) > 0


def test_a_refusal_names_the_call_and_the_reason(lines: list[logging.LogRecord]) -> None:
    refusals = ErrorLog()
    refusals.write("mine", RequestError("the server is full", Code.UNAVAILABLE))
    refusals.write("i" * 1_000, RequestError("internal error", Code.INTERNAL))
    first, second = (vars(line)["fields"] for line in lines)
    assert first == {"request_id": "mine", "reason": "UNAVAILABLE", "detail": "the server is full"}
    assert second["request_id"] == "i" * MAX_ID_LENGTH
    assert [line.levelname for line in lines] == ["INFO", "ERROR"]


def test_a_flood_of_refusals_is_cut_and_counted(lines: list[logging.LogRecord]) -> None:
    now = [7.0]
    refusals = ErrorLog(limit=100, clock=lambda: now[0])
    full = RequestError("full", Code.UNAVAILABLE)
    for place in range(1_000):
        refusals.write(str(place), full)
    assert len(lines) == 100
    now[0] = 8.0
    refusals.write("next", full)
    refusals.write("after", full)
    assert [vars(line)["fields"].get("left_out") for line in lines[-3:]] == [None, 900, None]


def test_without_a_traceback_there_is_no_detail() -> None:
    assert detail(RequestError("label 'secret' is unknown")) == ""


@pytest.mark.slow
def test_lines_of_the_api_have_their_time_as_all_others(tmp_path: Path) -> None:
    """The checkpoint has no tokenizer, which is worth a line."""
    given = {
        "CHECKPOINT": str(tmp_path),
        "BACKEND": "localhost:1",
        "LISTEN_PORT": "1",
        "SERVED_MODELS": "scorer",
    }
    (tmp_path / "config.json").write_text("{}")
    environment = os.environ | {f"HISCORE_{name}": value for name, value in given.items()}
    command = [sys.executable, "-m", "hiscore.api", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (line, *_) = [line for line in done.stderr.splitlines() if "hiscore.api" in line]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z hiscore \w+ hiscore\.api", line), done.stderr
