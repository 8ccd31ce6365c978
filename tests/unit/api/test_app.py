"""The application: which routes there are, and what is served beside them."""

import re
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hiscore.api.__main__ import main
from hiscore.api.app import create_app
from hiscore.prompts import families
from hiscore.prompts.families import FoundFamily
from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import MESSAGES
from tests.unit.api.conftest import MakeClient, MakeSettings


@pytest.mark.slow
def test_health_is_that_of_the_models(client: TestClient, models: FaultyServer) -> None:
    assert client.get("/health").status_code == 200
    models.ready = {"score"}
    reply = client.get("/health")
    assert reply.status_code == 503
    assert reply.json() == {"status": "the models are not ready"}


def test_models_are_listed(client: TestClient, make_client: MakeClient, checkpoint: Path) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"]) == (checkpoint.name, "model")
    named = make_client(api_model_names="a, b").get("/v1/models").json()
    assert [each["id"] for each in named["data"]] == ["a", "b"]


def test_one_model_is_described(client: TestClient, make_client: MakeClient) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert client.get(f"/v1/models/{listed['id']}").json() == listed
    named = make_client(api_model_names="org/a")
    assert named.get("/v1/models/org/a").json()["id"] == "org/a"
    reply = named.get("/v1/models/org/b")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    for nameless in (client, named):
        assert nameless.get("/v1/models/").status_code == 404


def test_without_a_scorer_nothing_is_scored(make_client: MakeClient) -> None:
    client = make_client(served_models="decode")
    assert client.post("/v1/score", json={}).status_code == 404
    assert "/v1/score" not in client.get("/openapi.json").json()["paths"]


def test_the_page_may_do_no_more_than_it_does(client: TestClient, make_client: MakeClient) -> None:
    reply = client.get("/")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href)=.?(?:https?:)?//", reply.text), "it needs another host"
    without = make_client(api_page=False)
    assert without.get("/").status_code == 404
    assert "/" not in without.get("/openapi.json").json()["paths"]


def test_keys_are_asked_for_where_there_is_something_to_protect(
    make_client: MakeClient, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("key")
    client = make_client(api_keys_file=tmp_path / "keys")
    body = {"query": "a", "texts": ["b"]}
    for path in ("/health", "/metrics", "/openapi.json"):
        assert client.get(path).status_code == 200
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models/a").status_code == 401
    assert client.post("/rerank", json=body).status_code == 401
    right = {"authorization": "Bearer key"}
    assert client.get("/v1/models", headers=right).status_code == 200
    assert client.post("/rerank", json=body, headers=right).status_code == 200


def test_what_is_not_there_is_said_in_json(client: TestClient) -> None:
    reply = client.post("/v1/nothing", headers={"x-request-id": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (404, "mine")
    assert reply.json()["error"]["request_id"] == "mine"
    assert "/v1/nothing" in reply.json()["error"]["message"]
    wrong = client.get("/rerank")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


def test_no_page_of_another_origin_is_told_that_it_may_read(client: TestClient) -> None:
    headers = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
    for reply in (client.options("/rerank", headers=headers), client.get("/v1/models", headers=headers)):
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_checkpoint_without_a_tokenizer_takes_token_ids(
    make_client: MakeClient, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    client = make_client(checkpoint=tmp_path)
    ids = {"query": [1], "items": [[2]], "label_token_ids": [3, 4]}
    assert client.post("/v1/score", json=ids).status_code == 200
    reply = client.post("/rerank", json={"query": "a", "texts": ["b"]})
    assert reply.status_code == 400
    assert "no tokenizer" in reply.text


RERANK: dict[str, Any] = {"query": "a", "documents": ["b"]}
NO_LABELS = replace(families.DEFAULT, labels=("Absolutely", "No"))
SCORE = {"query": "a", "items": ["b"], "label_token_ids": [1]}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"prompt_template": "nowhere.jinja"}, "its log says why"),
        ({"prompt_labels": "a,a"}, "'a' and 'a' are the same token"),
        (
            {"prompt_labels": ""},
            "the label 'Absolutely' does not add one token to the prompt: set PROMPT_LABELS",
        ),
    ],
)
def test_what_ranks_nothing_serves_the_rest(
    make_client: MakeClient,
    make_settings: MakeSettings,
    settings: dict[str, Any],
    says: str,
    caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(families, "UNKNOWN", FoundFamily(NO_LABELS, "guess"))
    client = make_client(**settings)
    for path, body in (
        ("/v1/rerank", RERANK),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/score", {"text_1": "a", "text_2": "b"}),
    ):
        reply = client.post(path, json=body)
        assert (reply.status_code, says in reply.text) == (400, True), reply.text
    assert client.post("/v1/score", json=SCORE).status_code == 200
    assert "rerank requests are refused" in caplog.text
    # What was asked for and cannot be is an error before a start; a restart of the API alone serves the rest.
    with (
        pytest.raises(ValueError, match=r"PROMPT_TEMPLATE|same token")
        if any(settings.values())
        else nullcontext()
    ):
        create_app(make_settings(**settings), strict=True)


def test_a_guess_is_said_with_every_answer(make_client: MakeClient, checkpoint: Path, tmp_path: Path) -> None:
    """By the hub's cache and by the name that was asked for; the control: nothing says how this one ranks."""
    sha = tmp_path / "models--Qwen--Qwen3-Reranker-0.6B" / "snapshots" / "6e9e6983"
    shutil.copytree(checkpoint, sha)
    linked = {
        "checkpoint": shutil.copytree(checkpoint, tmp_path / "blob"),
        "model": "/models/Qwen3-Reranker-0.6B",
    }
    names = []
    for settings in ({"checkpoint": sha}, linked, {}):
        client = make_client(prompt_labels="1,9", **settings)
        replies = [
            client.post("/v1/rerank", json=RERANK),
            client.post("/rerank", json={"query": "a", "texts": ["b"]}),
            client.post("/v1/ranking", json={"query": {"text": "a"}, "passages": [{"text": "b"}]}),
        ]
        assert [reply.status_code for reply in replies] == [200] * 3
        told = [reply.headers.get("x-hiscore-warning") for reply in replies]
        guess = "the template yes-no is a guess: neither the model's name nor its files say "
        guess += "how it ranks (PROMPT_TEMPLATE)"
        assert told == [None if settings else guess] * 3
        assert replies[0].json()["meta"].get("warnings") == (None if settings else [guess])
        names.append(client.get("/v1/models").json()["data"][0]["id"])
    assert names == ["Qwen/Qwen3-Reranker-0.6B", "blob", checkpoint.name]


def test_a_chat_template_that_does_not_compile_is_refused_where_it_is_needed(
    make_client: MakeClient, checkpoint: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(checkpoint, tmp_path / "broken")
    (broken / "chat_template.jinja").write_text("{% for %}")
    client = make_client(checkpoint=broken)
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/rerank", RERANK),
        ("/v1/decisions", {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]}),
    ):
        reply = client.post(path, json=body)
        assert (reply.status_code, "template" in reply.text) == (400, True), reply.text
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(("labels", "code"), [("a,b", 0), ("a,a", 2), ("", 0)])
def test_a_check_makes_the_application_and_serves_nothing(
    labels: str, code: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    given = {"CHECKPOINT": checkpoint, "BACKEND": "localhost:1", "LISTEN_PORT": 1, "SERVED_MODELS": "scorer"}
    for name, value in {**given, "PROMPT_LABELS": labels}.items():
        monkeypatch.setenv(f"HISCORE_{name}", str(value))
    monkeypatch.setattr(families, "UNKNOWN", FoundFamily(NO_LABELS, "guess"))
    monkeypatch.setattr(sys, "argv", ["hiscore.api", "--check"])
    assert main() == code
    said = capfd.readouterr().err
    assert ("the same token" in said) == bool(code)
    assert ("set PROMPT_LABELS to two" in said) == (labels == "")


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, None),
        ("https://a.example", None),
        ("https://b, https://a.test", "https://a.test"),
        ("*", "*"),
    ],
)
def test_only_pages_of_the_origins_that_are_set_may_read(
    make_client: MakeClient, allowed: str | None, expected: str | None
) -> None:
    client = make_client(api_cors_origins=allowed)
    origin = {"origin": "https://a.test"}
    asked = {
        **origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    preflight = client.options("/v1/rerank", headers=asked)
    assert preflight.status_code == (405 if allowed is None else 200 if expected else 400)
    for body in (RERANK, {}):
        reply = client.post("/v1/rerank", json=body, headers=origin)
        assert reply.status_code == (200 if body else 400)
        assert reply.headers.get("access-control-allow-origin") == expected
    if expected:
        assert preflight.headers["access-control-allow-origin"] == expected
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
