"""The HTTP API as the clients of other servers call it: each gets the ranking that transformers gives."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.checkpoint import published_name
from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.prompts.rerank import RerankPrompts
from tests.server.api import api_of, call
from tests.support.client_environment import ask, run
from tests.support.comparison import truth_of

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

QUERY, DOCUMENTS = "What is a fruit?", ["A hammer drives nails.", "An apple is a fruit.", "Rain falls."]
KEY = "test-key"
TOO_LONG = "word " * 9_000


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("api")
    (directory / "keys").write_text(KEY)
    with api_of(server, directory / "api.log", api_keys_file=directory / "keys") as running:
        yield running


@pytest.fixture(scope="module")
def truth(smollm: Path) -> np.ndarray:
    """P(Yes) against P(No) by transformers: float64 [documents]."""
    tokenizer, prompts = AutoTokenizer.from_pretrained(smollm), RerankPrompts(smollm)
    ids = [tokenizer(prompts.text(QUERY, each), add_special_tokens=False)["input_ids"] for each in DOCUMENTS]
    return truth_of(smollm).scores([], ids, prompts.label_ids, apply_softmax=True)[:, 0]


Pair = list[Any]


def ask_for_ranking(api: Api, script: str) -> dict[str, Any]:
    return ask(script, url=api.url, key=KEY, query=QUERY, documents=DOCUMENTS)


def check(found: list[Pair], truth: np.ndarray) -> None:
    order = [int(index) for index in np.argsort(-truth)][: len(found)]
    assert [index for index, _ in found] == order
    assert [score for _, score in found] == pytest.approx(truth[order], abs=1e-5)


def test_cohere(api: Api, truth: np.ndarray) -> None:
    answer = ask_for_ranking(api, "rerank_cohere")
    check(answer["found"], truth)
    assert len(answer["found"]) == 2
    assert [kind for kind, _ in answer["errors"]] == ["BadRequestError", "UnauthorizedError"]
    assert "documents" in answer["errors"][0][1]


def test_litellm(api: Api, truth: np.ndarray) -> None:
    answer = ask_for_ranking(api, "rerank_litellm")
    assert set(answer) == {"cohere", "hosted_vllm", "jina_ai"}
    for found in answer.values():
        check(found, truth)


def test_langchain_nvidia(api: Api, truth: np.ndarray) -> None:
    found = ask_for_ranking(api, "rerank_langchain_nvidia")["found"]
    logits = np.log(truth) - np.log1p(-truth)
    order = [int(index) for index in np.argsort(-truth)]
    assert [index for index, _ in found] == order
    assert [score for _, score in found] == pytest.approx(logits[order], abs=1e-4)


def test_rerankers(api: Api, truth: np.ndarray) -> None:
    answer = ask_for_ranking(api, "rerank_rerankers")
    assert set(answer) == {"cohere", "jina", "tei"}
    for found in answer.values():
        check(found, truth)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="aiperf needs CPython 3.11")
@pytest.mark.parametrize("endpoint", ["chat", "cohere-rankings", "hf-tei-rankings", "nim-rankings"])
def test_aiperf(api: Api, smollm: Path, endpoint: str, tmp_path: Path) -> None:
    requests, passages = 4, 3
    load = {
        "--endpoint-type": endpoint, "--url": api.url, "--api-key": KEY, "--model": "any",
        "--tokenizer": smollm, "--request-count": requests, "--concurrency": 2, "--random-seed": 1,
        "--rankings-passages-mean": passages, "--rankings-passages-prompt-token-mean": 20,
        "--rankings-query-prompt-token-mean": 8, "--artifact-dir": tmp_path, "--ui": "none",
    }  # fmt: skip
    if endpoint == "chat":
        load = {name: value for name, value in load.items() if not name.startswith("--rankings")}
        load |= {"--isl": 20, "--osl": 8}
    before = answered(api)
    done = run(["aiperf", "profile", *(str(each) for pair in load.items() for each in pair)])
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == requests
    assert not found.get("error_request_count", {}).get("avg")
    assert answered(api) - before >= requests


def answered(api: Api) -> int:
    page = call(api, "/metrics").body.decode()
    return sum(
        int(float(line.split()[-1]))
        for line in page.splitlines()
        if line.startswith("hiscore_api_requests_total") and 'status="200"' in line
    )


LETTER = "I was charged twice for my order. Please send the money back!"
TEAMS = [{"value": "billing", "description": "payments"}, {"value": "shipping"}]
LEVELS = [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious"}]
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "refund", "instructions": "The customer wants a refund."},
    {"type": "choice", "name": "team", "instructions": "Which team should answer?", "choices": TEAMS},
    {"type": "score", "name": "anger", "instructions": "How angry is the customer?", "levels": LEVELS},
]
SYSTEMONE = {
    "refund": {"type": "noul", "instructions": "The customer wants a refund."},
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "payments", "shipping": None},
    },
    "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "furious"]},
}
# Of one answer, asked for again in another batch.
SAME = 1e-5


def test_decisions(api: Api) -> None:
    """All clients give what the route says, which test_api_decisions compares with transformers."""
    allowed = f"Bearer {KEY}"
    answer = ask("decide", url=api.url, key=KEY, text=LETTER, questions=QUESTIONS)
    body = {"model": "any", "input": LETTER, "questions": QUESTIONS}
    plain = call(api, "/v1/decisions", body, authorization=allowed).json["answers"]
    for client in ("openai", "langchain", "litellm"):
        refund, team, anger = answer["found"][client]
        assert refund["probability"] == pytest.approx(plain[0]["probability"], abs=SAME)
        assert team["choice"] == plain[1]["choice"]
        assert anger["score"] == pytest.approx(plain[2]["score"], abs=SAME)
    assert "questions" in answer["refused"]
    body = {"model": "any", "state": answer["state"], "questions": SYSTEMONE}
    named = call(api, "/v1/systemone", body, authorization=allowed).json["answers"]
    for found in answer["systemone"].values():
        assert found["refund"] == pytest.approx(named["refund"]["noul"], abs=SAME)
        assert found["team"] == pytest.approx(named["team"]["probabilities"], abs=SAME)
        assert found["anger"] == pytest.approx(named["anger"]["score"], abs=SAME)
    assert set(answer["systemone"]) == {"zstd", "False"}


def test_chat_and_completions(api: Api, smollm: Path) -> None:
    """All clients give what the routes say, which test_api_chat compares with decode's own answers."""
    allowed = f"Bearer {KEY}"
    messages, tokens = [{"role": "user", "content": "Name a fruit."}], 12
    asked = {"messages": messages, "prompt": "A fruit:", "tokens": tokens, "too_long": TOO_LONG}
    answer = ask("converse", url=api.url, key=KEY, **asked)
    options = {"model": "any", "temperature": 0, "max_tokens": tokens}
    reply = call(api, "/v1/chat/completions", {**options, "messages": messages}, authorization=allowed).json
    said = reply["choices"][0]["message"]["content"]
    assert said
    assert set(answer["chat"].values()) == {said}
    assert len(answer["chat"]) == 6
    reply = call(api, "/v1/completions", {**options, "prompt": "A fruit:"}, authorization=allowed).json
    assert set(answer["completions"].values()) == {reply["choices"][0]["text"]} != {""}
    for usage in answer["usage"]:
        assert 0 < usage["completion_tokens"] <= tokens
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer["models"] == [published_name(smollm)]
    kinds = [kind for kind, _ in answer["errors"]]
    assert answer["errors"][0] == ["BadRequestError", "context_length_exceeded"]
    assert kinds[1:] == ["OpenAIContextOverflowError", *["ContextWindowExceededError"] * 2, "BadRequestError"]
