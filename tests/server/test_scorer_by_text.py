"""The scorer by text, as `score` calls it: by the same words, and a large text holds no other call up."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.scoring.text_reader import LARGE_BYTES
from hiscore.serving.background_reader import MAX_WAITING
from hiscore.settings import ServeSettings
from tests.server.conftest import StartServer
from tests.server.counters import counted
from tests.server.wire import WAYS, Refused
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.server

TEXTS: dict[str, Any] = {
    "query": ["Is this a fruit? It is"], "items": [" an apple", " a hammer", ""], "label_token_ids": [5, 77],
}  # fmt: skip
# It cannot be split, so it is encoded with every item, and yet has few tokens.
LARGE: dict[str, Any] = {
    "query": ["x" * 300], "items": [f"y{number}" for number in range(LARGE_BYTES // 300 + 1)],
    "label_token_ids": [5, 77],
}  # fmt: skip
REJECTS = "scorer", "hiscore_rejects_total"

# The scorer's own model.py with some lines more: while a file lies there, large texts are not encoded; another
# counts those that have been reached.
CODE = """
import os
import time

from hiscore.scoring.text_reader import TextReader

_encode = TextReader.encode
_server = os.getppid()


def _held_encode(self, plan):
    if plan.cost > LARGE_BYTES:
        with open({reached!r}, "a") as file:
            file.write("x")
        while os.path.exists({hold!r}) and os.getppid() == _server:
            time.sleep(0.02)
    return _encode(self, plan)


TextReader.encode = _held_encode
"""


def scores(
    server: Server, inputs: dict[str, Any] = TEXTS, model: str = "scorer", way: str = "grpc"
) -> np.ndarray:
    return WAYS[way](server, model, inputs, {"apply_softmax": True})["scores"]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_as_by_score_and_by_ids(way: str, lm: Server) -> None:
    ids = WAYS["grpc"](lm, "tokenizer", TEXTS, {})
    found = scores(lm, way=way).reshape(3, 2)
    assert np.array_equal(found, scores(lm, model="score").reshape(3, 2))
    assert np.array_equal(found, scores(lm, ids).reshape(3, 2))
    assert np.ptp(found[:, 0]) > 1e-4  # the control: items differ


def test_calls_by_text_are_counted_and_timed(lm: Server) -> None:
    calls = "scorer", "hiscore_tokenized_calls_total"
    with counted(lm, {calls: 3}) as risen:
        for inputs in (TEXTS, TEXTS | {"query": ["it"]}, TEXTS):
            scores(lm, inputs, "score")
    assert risen[calls] == risen["scorer", "hiscore_call_seconds_count"] == 3
    # "it" cannot be split.
    assert risen["scorer", "hiscore_full_encodes_total"] == 1
    assert risen.get(("tokenizer", "hiscore_tokenized_calls_total"), 0) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [1, 2]}, "exactly one of 'input_ids' and 'query' is needed: both were sent"),
        ({"query": None}, "'query' is missing"),
        ({"items": None}, "'items' is missing"),
        ({"query": None, "items": None}, "'input_ids' is missing"),
    ],
)
def test_ids_or_texts_are_needed(changes: dict[str, Any], message: str, lm: Server) -> None:
    inputs = {name: values for name, values in (TEXTS | changes).items() if values is not None}
    with pytest.raises(Refused, match=message) as raised:
        scores(lm, inputs)
    assert raised.value.code == "INVALID_ARGUMENT"


def test_without_score_there_are_ids_alone(start_server: StartServer, tiny_lm: Path) -> None:
    server = start_server(tiny_lm, models="scorer")
    with pytest.raises(Refused, match=r"takes token ids alone: 'score' is not loaded \(MODELS\)"):
        scores(server)
    ids = {"input_ids": [3, 0, 4, 0], "delimiter_indices": [1, 3], "label_token_ids": [5]}
    assert scores(server, ids).size == 1


def test_score_needs_no_tokenizer_model(start_server: StartServer, tiny_lm: Path, lm: Server) -> None:
    server = start_server(tiny_lm, models="score,scorer")
    assert np.array_equal(scores(server, model="score"), scores(lm, model="score"))


def test_a_large_text_holds_no_other_call_up(
    start_server: StartServer, tiny_lm: Path, tmp_path: Path
) -> None:
    """And more of them than may wait are refused for now, and counted."""
    repository, hold, reached = (tmp_path / name for name in ("repository", "hold", "reached"))
    shutil.copytree(ServeSettings.model_fields["model_repository"].default, repository)
    with (repository / "scorer/1/model.py").open("a") as model:
        model.write(CODE.format(hold=str(hold), reached=str(reached)))
    server = start_server(tiny_lm, models="score,scorer", model_repository=repository, max_batch_calls=1)
    hold.touch()
    calls = [LARGE | {"query": [letter * 300]} for letter in "abcdefghijklmnopqr"]
    assert len(calls) == MAX_WAITING + 2
    with counted(server) as risen, ThreadPoolExecutor(len(calls)) as pool:
        try:
            large = [pool.submit(scores, server, calls[0], "score")]
            wait_until(reached.exists, lambda: "no large text was reached")
            assert scores(server, model="score").size == 6
            large += [pool.submit(scores, server, call, "score") for call in calls[1:]]
            wait_until(lambda: any(each.done() for each in large), lambda: "none is refused")
        finally:
            hold.unlink()
        errors = [each.exception() for each in large]
    refused = [error for error in errors if error is not None]
    full = f"the server is full: {MAX_WAITING} texts of more than {LARGE_BYTES} bytes wait to be read"
    assert [str(error) for error in refused] == [f"UNAVAILABLE: in ensemble 'score', {full}"]
    assert risen[REJECTS] == 1
    alone = [
        scores(server, call, "score") for call, error in zip(calls, errors, strict=True) if error is None
    ]
    found = [each.result() for each, error in zip(large, errors, strict=True) if error is None]
    # The contract's tolerance between batches.
    assert all(np.allclose(*pair, atol=2e-5, rtol=0) for pair in zip(found, alone, strict=True))
