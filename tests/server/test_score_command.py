"""The `hiscore` command, in a process of its own, against the real server."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.wire import score_texts
from tests.support.comparison import INVARIANCE

pytestmark = pytest.mark.server

COMMAND = [sys.executable, "-c", "from hiscore_client.cli import main; main()"]
LABELS = [" Yes", " No"]
OPTIONS = ["--label", " Yes", "--label", " No", "--softmax"]


def run(url: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HISCORE_URL": url}
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=60
    )


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def nobody() -> str:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{holder.getsockname()[1]}"


def test_items_of_one_query(lm: Server) -> None:
    done = run(lm.grpc_url, "score", "--query", "Is it a fruit?", *OPTIONS, " apple", " Hämmer")
    assert done.returncode == 0, done.stderr
    (line,) = lines(done.stdout)
    expected = score_texts(lm, "Is it a fruit?", [" apple", " Hämmer"], LABELS, apply_softmax=True)
    np.testing.assert_allclose(line["scores"], expected.scores, atol=INVARIANCE, rtol=0)
    assert line["usage"]["prompt_tokens"] == expected.prompt_tokens


def test_json_lines_in_and_out_with_one_bad_record(lm: Server, tmp_path: Path) -> None:
    records = [
        {"id": place, "query": f"Number {place}:", "items": [" odd", " even"][: place % 3]}
        for place in range(20)
    ]
    # Nothing is left to read of this one.
    records[5] = {"id": 5, "query": "", "items": [""]}
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    done = run(lm.grpc_url, "score", "--file", str(file), *OPTIONS)
    assert done.returncode == 2
    answers = lines(done.stdout)
    assert [answer["id"] for answer in answers] == list(range(20))
    for record, answer in zip(records, answers, strict=True):
        if record["id"] == 5:
            assert answer["error"]["type"] == "InvalidRequest"
            assert "both empty" in answer["error"]["message"]
            continue
        expected = score_texts(lm, record["query"], record["items"], LABELS, apply_softmax=True).scores
        np.testing.assert_allclose(np.reshape(answer["scores"], (-1, 2)), expected, atol=INVARIANCE, rtol=0)


def test_a_bad_call_exits_with_2(lm: Server) -> None:
    done = run(lm.grpc_url, "score", "--query", "Is it?", "--label", " Yes No", " a")
    assert done.returncode == 2
    assert "label ' Yes No' is 2 tokens" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_deadline_exits_with_5(lm: Server) -> None:
    items = "".join(f" item {place} of many\n" for place in range(2_000))
    done = run(lm.grpc_url, "score", "--query", "a b " * 900, *OPTIONS, "--timeout", "0.02", stdin=items)
    assert done.returncode == 5, done.stderr


def test_wait_ready(lm: Server, nobody: str) -> None:
    assert run(lm.grpc_url, "wait-ready", "--timeout", "20").returncode == 0
    missing = run(lm.grpc_url, "wait-ready", "--timeout", "1", "--model", "nope")
    assert missing.returncode == 5
    assert "nope" in missing.stderr
    assert run(nobody, "wait-ready", "--timeout", "1").returncode == 3


def test_nobody_there_exits_with_3(nobody: str) -> None:
    done = run(nobody, "score", "--query", "Is it?", *OPTIONS, " a")
    assert done.returncode == 3
    assert nobody in done.stderr
