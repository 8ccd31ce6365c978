"""What a server logs of calls that it refuses: a line for each, with its id, and nothing that the caller sent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.conftest import StartServer
from tests.server.generation import answers_of, tensors

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

QUERY, ITEM = "a query that nobody else sees", "an item of its own"
LABEL, STOP = "a label that only this call has", "[an end that is no JSON"


@pytest.fixture(scope="module")
def server(start_server: StartServer, tiny_lm: Path) -> Server:
    return start_server(tiny_lm, query_cache_bytes=2**24, log_format="json", max_call_tokens=1_000)


def text_of(server: Server) -> str:
    assert server.log_path is not None
    return server.log_path.read_text()


def lines_of(server: Server, request_id: str) -> list[dict[str, Any]]:
    """The lines that name a call, each of which must be JSON."""
    return [json.loads(line) for line in text_of(server).splitlines() if request_id in line]


def score(server: Server, request_id: str, **options: Any) -> str:
    with ScoreClient(server.grpc_url) as client, pytest.raises(InvalidRequest) as refused:
        client.score(QUERY, [ITEM], request_id=request_id, **options)
    return str(refused.value)


def score_ids(server: Server, request_id: str) -> str:
    with ScoreClient(server.grpc_url) as client, pytest.raises(InvalidRequest) as refused:
        client.score_ids([5], [[987_654_321]], [1], request_id=request_id)
    return str(refused.value)


def generate(server: Server, request_id: str) -> str:
    """A stop string that is not JSON, which the SDK would not send."""
    (error,) = answers_of(server, tensors({"text_input": QUERY}), request_id, stop=STOP)
    assert isinstance(error, InferenceServerException)
    return str(error.message())


def test_a_refused_call_is_one_line_without_what_it_held(server: Server) -> None:
    calls = {
        "by-label": (score(server, "by-label", labels=[LABEL, LABEL]), "tokenizer", LABEL),
        "by-ids": (score_ids(server, "by-ids"), "scorer", "987654321"),
        "by-stop": (generate(server, "by-stop"), "decode", STOP[1:20]),
    }
    for request_id, (message, model, sent) in calls.items():
        (line,) = lines_of(server, request_id)
        assert (line["request_id"], line["model"], line["reason"]) == (request_id, model, "INVALID_ARG")
        assert line["level"] == "INFO"
        assert line["detail"].startswith("hiscore.")
        # The control: whoever logged the message would have logged this.
        assert sent in message
        assert sent not in text_of(server)
    assert QUERY not in text_of(server)
    assert ITEM not in text_of(server)


def test_an_id_from_outside_stays_in_its_line(server: Server) -> None:
    forged = 'forged"}\n{"request_id": "two"}'
    score(server, forged, labels=[LABEL, LABEL])
    (line,) = lines_of(server, "forged")
    assert line["request_id"] == forged
    assert not any(line.startswith('{"request_id"') for line in text_of(server).splitlines())


def launcher(**environment: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a launcher that cannot start, and its log."""
    done = subprocess.run(
        [sys.executable, "-m", "hiscore.launcher"],
        env={**os.environ, "LOG_FORMAT": "json", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def test_the_launcher_says_in_json_why_it_ends(tmp_path: Path) -> None:
    code, lines = launcher(MODEL=str(tmp_path / "nowhere"))
    assert code == 2
    assert lines[-1]["level"] == "ERROR"
    assert lines[-1]["logger"] == "hiscore.launcher"
    assert "nowhere" in lines[-1]["message"]
