"""The HTTP API with the default model: its scores are transformers', its limits hold, and it goes as it came."""

import gzip
import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import zstandard
from transformers import AutoTokenizer

from hiscore.launcher import LaunchError, Server
from hiscore.launcher.api import Api
from hiscore.prompts.rerank import RerankPrompts
from tests.server.api import api_of, call, wait_for_metric
from tests.server.raw_http import connect, post
from tests.support.comparison import check, truth_of
from tests.support.processes import alive
from tests.support.timeouts import wait_until

pytestmark = pytest.mark.server

LABELS = [9230, 2838]  # " Yes" and " No"
QUERY, DOCUMENTS = "What is a fruit?", ["An apple is a fruit.", "A hammer drives nails.", "", "苹果是水果。"]
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    log = tmp_path_factory.mktemp("api") / "api.log"
    with api_of(server, log, max_body=MAX_BODY) as running:
        yield running


@pytest.fixture(scope="module")
def relevance(smollm: Path) -> np.ndarray:
    """P(Yes) against P(No) after the whole prompt, by transformers: float64 [documents, 2]."""
    tokenizer, prompts = AutoTokenizer.from_pretrained(smollm), RerankPrompts(smollm)
    texts = [prompts.text(QUERY, document) for document in DOCUMENTS]
    assert not any("\ufdd0" in text for text in texts), "nothing here needed an escape"
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return truth_of(smollm).scores([], ids, prompts.label_ids, apply_softmax=True)


def logits(relevance: np.ndarray) -> np.ndarray:
    return np.log(relevance[:, 0]) - np.log(relevance[:, 1])


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_score_in_sglangs_body(api: Api, smollm: Path, apply_softmax: bool) -> None:
    items = [" an apple", " a hammer"]
    body = {
        "model": "any", "query": "Is this a fruit? It is", "items": items, "label_token_ids": LABELS,
        "apply_softmax": apply_softmax,
    }  # fmt: skip
    reply = call(api, "/v1/score", body)
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    ids = [tokenizer(body["query"] + item)["input_ids"] for item in items]
    truth = truth_of(smollm).scores([], ids, LABELS, apply_softmax=apply_softmax)
    check(np.array(reply.json["scores"]), truth, over_vocabulary=not apply_softmax)
    assert (reply.json["object"], reply.json["model"]) == ("scoring", "any")
    assert reply.json["usage"]["prompt_tokens"] == reply.json["usage"]["total_tokens"] > 0
    by_id = call(
        api,
        "/v1/score",
        {**body, "query": ids[0][:-2], "items": [each[len(ids[0]) - 2 :] for each in ids]},
    )
    assert by_id.json["scores"][0] == pytest.approx(reply.json["scores"][0], abs=1e-6)


def test_the_tokens_of_prompts_have_transformers_probabilities(api: Api, smollm: Path) -> None:
    """Echo as lm-evaluation-harness asks for it: log-softmax of the whole sequence, and what is likeliest next."""
    tokenizer, model = AutoTokenizer.from_pretrained(smollm), truth_of(smollm).model
    texts = ["Is this a fruit? An apple is", "Is this a fruit? An apple is not", "苹果是水果。", "A"]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    body = {"model": "any", "prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    reply = call(api, "/v1/completions", {**body, "prompt_logprobs": 0}).json
    for prompt, text, choice in zip(prompts, texts, reply["choices"], strict=True):
        with torch.inference_mode():
            logs = model(torch.tensor([prompt])).logits[0].double().log_softmax(dim=-1)
        following = [*prompt[1:], int(logs[-1].argmax())]
        expected = logs[range(len(prompt)), following].tolist()
        told = choice["logprobs"]
        assert told["token_logprobs"][1:] == pytest.approx(expected, abs=2e-5)
        assert choice["text"] == text + tokenizer.decode(following[-1:])
        assert [max(top.values()) for top in told["top_logprobs"][1:]] == pytest.approx(
            logs.max(dim=1).values.tolist(), abs=2e-5
        )
        ranks = (logs > logs[range(len(prompt)), following][:, None]).sum(dim=1) + 1
        of_prompt = [next(iter(each.values()))["rank"] for each in choice["prompt_logprobs"][1:]]
        assert of_prompt == ranks[:-1].tolist()


def test_rerank_in_all_bodies(api: Api, relevance: np.ndarray) -> None:
    order = [int(index) for index in np.argsort(-relevance[:, 0])]
    p = relevance[:, 0]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        body = {"model": "m", "query": QUERY, "documents": DOCUMENTS, "return_documents": True, "top_n": 3}
        answer = call(api, path, body).json
        assert [each["index"] for each in answer["results"]] == order[:3]
        assert [each["relevance_score"] for each in answer["results"]] == pytest.approx(
            p[order[:3]], abs=1e-5
        )
        assert [each["document"]["text"] for each in answer["results"]] == [DOCUMENTS[i] for i in order[:3]]
        assert answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 0
    tei = call(api, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True}).json
    assert [each["index"] for each in tei] == order
    assert [each["score"] for each in tei] == pytest.approx(p[order], abs=1e-5)
    assert [each["text"] for each in tei] == [DOCUMENTS[i] for i in order]
    raw = call(api, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json
    assert [each["score"] for each in raw] == pytest.approx(logits(relevance)[order], abs=1e-4)
    passages = [{"text": text} for text in DOCUMENTS]
    nim = call(api, "/v1/ranking", {"query": {"text": QUERY}, "passages": passages}).json
    assert [each["index"] for each in nim["rankings"]] == order
    assert [each["logit"] for each in nim["rankings"]] == pytest.approx(logits(relevance)[order], abs=1e-4)
    for path in ("/score", "/v1/score"):
        pairs = call(api, path, {"text_1": QUERY, "text_2": DOCUMENTS}).json
        assert [each["score"] for each in pairs["data"]] == pytest.approx(p, abs=1e-5)


def test_control_an_instruction_changes_the_scores(api: Api, relevance: np.ndarray) -> None:
    body = {"query": QUERY, "texts": DOCUMENTS, "instruction": "Answer Yes to nothing but tools."}
    scores = {each["index"]: each["score"] for each in call(api, "/rerank", body).json}
    assert max(abs(scores[index] - p) for index, p in enumerate(relevance[:, 0])) > 1e-3


def test_compressed_bombs_do_not_explode(api: Api) -> None:
    bomb = b" " * 2**30
    before = resident(api)
    assert call(api, "/rerank", gzip.compress(bomb[: 2**26]), content_encoding="gzip").status == 413
    assert call(api, "/rerank", zstandard.compress(bomb), content_encoding="zstd").status == 413
    assert resident(api) - before < 2**26


def resident(api: Api) -> int:
    return int(psutil.Process(api.pid).memory_info().rss)


def test_keys_are_asked_for(server: Server, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst\nsecond\n")
    body = {"query": "a", "texts": ["b"]}
    with api_of(server, tmp_path / "log", api_keys_file=keys, api_model_names="a,b") as api:
        assert call(api, "/rerank", body, authorization="Bearer third").status == 401
        assert call(api, "/rerank", {**body, "model": "b"}, authorization="Bearer first").status == 200
        assert call(api, "/rerank", {**body, "model": "c"}, authorization="Bearer first").status == 404
        with pytest.raises(LaunchError, match=f"API_PORT {api.port} is in use"):
            api_of(server, tmp_path / "other", api_port=api.port).__enter__()


def test_processes_share_the_port_and_all_go(server: Server, tmp_path: Path) -> None:
    with api_of(server, tmp_path / "log", api_processes=2) as api:
        for _ in range(20):
            assert call(api, "/rerank", {"query": "a", "texts": ["b"]}).status == 200
        wait_for_metric(api, 'hiscore_api_requests_total{route="/rerank",status="200"} 20.0')
        processes = [psutil.Process(api.pid), *psutil.Process(api.pid).children(recursive=True)]
        assert len(processes) > 2
    assert not alive(processes)


def test_a_dead_api_is_restarted_alone(server: Server, tmp_path: Path) -> None:
    with api_of(server, tmp_path / "log") as api:
        first = api.pid
        os.killpg(first, signal.SIGKILL)

        def is_up() -> bool:
            api.watch()
            with suppress(OSError):
                return call(api, "/health").status == 200
            return False

        wait_until(is_up)
        assert api.pid != first
        assert server.fault() == ""


def has_begun(connection: socket.socket, api: Api) -> bool:
    """Whether a call is running, or has been answered."""
    running = 'running{route="/rerank"} 1.0' in call(api, "/metrics").body.decode()
    return running or bool(select.select([connection], [], [], 0)[0])


def test_a_stop_waits_for_running_requests(server: Server, tmp_path: Path) -> None:
    body = json.dumps({"query": "a " * 300, "texts": [f"{index} " * 100 for index in range(8)]}).encode()
    with api_of(server, tmp_path / "log") as api:
        while True:
            connection = connect(api.url)
            connection.sendall(post("/rerank", body, "Content-Type: application/json"))
            # The control: it is running. If the answer is there already, once more.
            wait_until(lambda: has_begun(connection, api))  # noqa: B023
            if not select.select([connection], [], [], 0)[0]:
                break
            connection.close()
    with connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
