import json
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.client.cli.command import lines, run, run_process
from tests.server.wire import score_texts
from tests.support.comparison import INVARIANCE

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [" Yes", " No"]
OPTIONS = ["--label", " Yes", "--label", " No", "--softmax"]


def test_items_of_one_query(lm: Server) -> None:
    done = run_process("score", "--query", "Is it a fruit?", *OPTIONS, " apple", " Hämmer", url=lm.grpc_url)
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
    done = run("score", "--file", str(file), *OPTIONS, url=lm.grpc_url)
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
