"""Bodies as clients' own packages send them (tests/clients/record.py): each is answered."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer
from tests.support import chat_templates, tiny_tokenizers
from tests.unit.api.conftest import MakeClient

FILE = Path(__file__).resolve().parents[2] / "data" / "client_bodies.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]
# What is not served, and what the caller is told.
REFUSED = {"an image": (400, "text alone is"), "embeddings": (404, "Not Found: POST /v1/embeddings")}
BYTES = LLTokenizer("byte")


@pytest.fixture(scope="module")
def tooled(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with a template that takes tools."""
    directory = tmp_path_factory.mktemp("tooled")
    (directory / "config.json").write_text((checkpoint / "config.json").read_text())
    (directory / "chat_template.jinja").write_text(chat_templates.QWEN3)
    return tiny_tokenizers.save(tiny_tokenizers.train(tiny_tokenizers.smollm2()), directory)


@pytest.fixture
def client(make_client: MakeClient, tooled: Path) -> TestClient:
    return make_client(checkpoint=tooled, max_context=100_000, prompt_labels="0,1")


@pytest.mark.slow
def test_every_body_is_answered_and_one_field_more_is_refused(
    client: TestClient, make_client: MakeClient, models: FaultyServer
) -> None:
    failed, scoring = [], make_client()
    for row in ROWS:
        name = f"{row['client']}: {row['case']}"
        models.requests.clear()
        asked = client if row["path"] == "/v1/chat/completions" else scoring
        reply = asked.post(row["path"], json=row["body"])
        status, says = REFUSED.get(row["case"], (200, ""))
        if reply.status_code != status or says not in reply.text:
            failed.append(f"{name}: {reply.status_code} {reply.text[:300]}")
        failed += [f"{name}: {wrong}" for wrong in map(refused_grammar, models.requests) if wrong]
        if status == 200:
            reply = asked.post(row["path"], json={**row["body"], "known_to_nobody": 0})
            if reply.status_code != 400 or "known_to_nobody" not in reply.text:
                failed.append(f"{name}: the control is answered {reply.status_code}")
    assert not failed, "\n".join(failed)


def refused_grammar(request: Any) -> str:
    """What `decode` would say of a request's grammar: the fake asks nobody."""
    for kind in ("json_schema", "ebnf", "regex"):
        if source := request.parameters[kind].string_param if kind in request.parameters else "":
            matcher = LLMatcher(BYTES, grammar_from(kind, source), log_level=0)
            return str(matcher.get_error()) if matcher.is_error() else ""
    return ""


def test_functions_are_answered_as_openai_first_named_calls(client: TestClient, models: FaultyServer) -> None:
    (row,) = (row for row in ROWS if row["case"] == "function named")
    models.stream = [([5], b'[{"name": "Weather", "argum', b""), ([6], b'ents": {"city": 1e999}}]', b"stop")]
    (choice,) = client.post(row["path"], json=row["body"]).json()["choices"]
    called = {"name": "Weather", "arguments": '{"city": 1e999}'}
    assert choice["message"]["function_call"] == called
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("function_call", False)
    streamed = client.post(row["path"], json={**row["body"], "stream": True}).text
    assert f'"delta":{{"function_call":{json.dumps(called, separators=(",", ":"))}' in streamed
    # The control: as OpenAI names them now.
    tools = [{"type": "function", "function": each} for each in row["body"]["functions"]]
    body = {"messages": row["body"]["messages"], "tools": tools, "tool_choice": "required"}
    (choice,) = client.post(row["path"], json=body).json()["choices"]
    assert (choice["finish_reason"], "function_call" in choice["message"]) == ("tool_calls", False)
    for wrong in ({"tools": tools}, {"tool_choice": "auto"}, {"functions": None}):
        reply = client.post(row["path"], json={**row["body"], **wrong})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "functions")


def test_the_table_holds_what_it_is_for() -> None:
    assert len(ROWS) >= 60
    clients = {row["client"].split()[0] for row in ROWS}
    assert clients >= {"openai", "cohere", "litellm", "langchain-openai", "instructor", "openai-agents"}
    assert {row["path"] for row in ROWS} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v2/rerank",
        "/v1/ranking",
    }
    assert set(REFUSED) <= {row["case"] for row in ROWS}
