"""The scorer by text, as `score` calls it: the same scores, and texts hold no call by ids up."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from hiscore.launcher.repository import SHIPPED
from hiscore.scoring.text.batched_tokenizer import MAX_ALONE_BYTES
from perf.loadgen.exports import page
from tests.server.conftest import StartServer
from tests.server.counters import counted
from tests.server.wire import WAYS, Refused, row
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.server

TEXTS: dict[str, Any] = {
    "query": ["Is this a fruit? It is"], "items": [" an apple", " a hammer", ""], "label_token_ids": [5, 77],
}  # fmt: skip
IDS: dict[str, Any] = {"input_ids": [3, 0, 4, 0], "delimiter_indices": [1, 3], "label_token_ids": [5]}
# Many bytes and few tokens, since spaces are joined.
LARGE: dict[str, Any] = {
    "query": ["Is it?"], "items": [" " * (MAX_ALONE_BYTES // 50)] * 51, "label_token_ids": [5, 77],
}  # fmt: skip

FULL = "the server is full, try again later"

# The scorer's own model.py with some lines more: while a file lies there, large texts are not encoded.
CODE = """
import os
import time

_launch = BatchedTokenizer.launch
_server = os.getppid()


def _held_launch(self, jobs):
    while any(job.plan is None for job in jobs) and os.path.exists({hold!r}) and os.getppid() == _server:
        with open({reached!r}, "w"):
            pass
        time.sleep(0.02)
    yield from _launch(self, jobs)


BatchedTokenizer.launch = _held_launch
"""


def scores(
    server: Server,
    inputs: dict[str, Any] = TEXTS,
    model: str = "scorer",
    way: str = "grpc",
    **parameters: Any,
) -> np.ndarray:
    return WAYS[way](server, model, inputs, {"apply_softmax": True, **parameters})["scores"]


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_as_by_score_and_by_ids(way: str, item_first: bool, lm: Server) -> None:
    ids = WAYS["grpc"](lm, "tokenizer", TEXTS, {"item_first": item_first})
    found = scores(lm, way=way, item_first=item_first).reshape(3, 2)
    # The contract's tolerance between batches: the second may find the query in the cache.
    for other in (scores(lm, model="score", item_first=item_first), scores(lm, ids)):
        np.testing.assert_allclose(found, other.reshape(3, 2), atol=2e-5, rtol=0)
    assert np.ptp(found[:, 0]) > 1e-3  # the control: items differ


def test_calls_by_text_are_counted(lm: Server) -> None:
    calls = "score", "hiscore_tokenized_calls_total"
    with counted(lm, {calls: 3}) as risen:
        for inputs in (TEXTS, TEXTS | {"query": ["it"]}, TEXTS):
            scores(lm, inputs, "score")
    assert risen[calls] == risen["score", "hiscore_tokenizer_batches_total"] == 3
    assert risen["scorer", "hiscore_call_seconds_count"] == risen["scorer", "hiscore_forwards_total"] == 3
    # "it" cannot be split.
    assert risen["score", "hiscore_full_encodes_total"] == 1
    assert risen["tokenizer", "hiscore_tokenized_calls_total"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [1, 2]}, "'input_ids' and 'query' were both sent: a call is by token ids or by text"),
        ({"delimiter_indices": [1]}, "'delimiter_indices' and 'query' were both sent"),
        ({"query": None}, "'query' is missing"),
        ({"items": None}, "'items' is missing"),
        ({"query": None, "items": None}, "'query' or 'input_ids' is missing"),
        ({"query": None, "items": None, "input_ids": [1, 0]}, "'delimiter_indices' is missing"),
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
    with pytest.raises(Refused, match="'input_ids' is missing"):
        scores(server, {"label_token_ids": [5]})
    assert scores(server, IDS).size == 1


def test_score_needs_no_tokenizer_model(start_server: StartServer, tiny_lm: Path, lm: Server) -> None:
    server = start_server(tiny_lm, models="score,scorer")
    np.testing.assert_allclose(scores(server, model="score"), scores(lm, model="score"), atol=2e-5, rtol=0)


def test_a_large_text_holds_no_call_by_ids_up(
    start_server: StartServer, tiny_lm: Path, lm: Server, tmp_path: Path
) -> None:
    """And texts have a queue of their own, with the limits of every queue."""
    repository, hold, reached = (tmp_path / name for name in ("repository", "hold", "reached"))
    shutil.copytree(SHIPPED, repository)
    with (repository / "scorer/1/model.py").open("a") as model:
        model.write(CODE.format(hold=str(hold), reached=str(reached)))
    server = start_server(tiny_lm, models="score,scorer", model_repository=repository, max_queue=1)
    hold.touch()
    with counted(server) as risen, ThreadPoolExecutor(3) as pool:
        try:
            large = pool.submit(scores, server, LARGE, "score")
            wait_until(reached.exists, lambda: "the large text was not reached")
            assert scores(server, IDS).size == 1
            # One of these has room to wait, too long as it turns out.
            small = [pool.submit(within_a_millisecond, server) for _ in range(2)]
            wait_until(lambda: any(each.done() for each in small), lambda: "none is refused")
        finally:
            hold.unlink()
        errors = sorted(each.result() for each in small)
    assert errors == [f"in ensemble 'score', {why}" for why in ("Request timeout expired in the queue", FULL)]
    assert risen["score", "hiscore_rejects_total"] == 2
    np.testing.assert_allclose(large.result(), scores(lm, LARGE, "score"), atol=2e-5, rtol=0)


def within_a_millisecond(server: Server) -> str:
    """Why a call by text that may wait for so long is refused."""
    inputs = []
    for name, values in TEXTS.items():
        inputs.append(InferInput(name, [1, len(values)], "INT32" if name == "label_token_ids" else "BYTES"))
        inputs[-1].set_data_from_numpy(row(values))
    with InferenceServerClient(server.grpc_url) as client, pytest.raises(InferenceServerException) as raised:
        client.infer("score", inputs, timeout=1_000)
    return str(raised.value.message())


def test_several_instances_share_the_texts(start_server: StartServer, tiny_lm: Path, lm: Server) -> None:
    server = start_server(tiny_lm, models="score,scorer", cpu_instances=2)
    calls = [TEXTS | {"query": [f"Is this number {number}? It is"]} for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda call: scores(server, call, "score"), calls))
    for call, answer in zip(calls, found, strict=True):
        np.testing.assert_allclose(answer, scores(lm, call, "score"), atol=2e-5, rtol=0)
    by_instance = re.findall(
        r'^hiscore_tokenized_calls_total\{[^}]*model="score"[^}]*\} (\S+)$',
        page(server.metrics_url),
        re.MULTILINE,
    )
    assert len(by_instance) == 2
