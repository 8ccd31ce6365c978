"""A field that nobody knows may be null: clients that write out all of theirs send it."""

import copy
import operator
from functools import reduce
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import CASES, MESSAGES, PAIRS, RERANK
from tests.support.tiers import first_of
from tests.unit.api.conftest import schema_of

NAMES = [f"{path}-{index}" for index, (path, _) in enumerate(CASES)]


@pytest.mark.parametrize(("path", "body"), CASES, ids=NAMES)
def test_it_is_as_if_it_were_not_there_and_with_a_value_refused_by_name(
    client: TestClient, models: FaultyServer, description: Any, path: str, body: dict[str, Any]
) -> None:
    known = {"lora_path": None, **body, "web_search_options": None}
    jsonschema.validate(known, schema_of(description, path))
    assert client.post(path, json=known).status_code == client.post(path, json=body).status_code == 200
    models.requests.clear()
    for value in ("", 0, False, [], {}, "null"):
        wrong = {**body, "known_to_nobody": None, "lora_path": value}
        reply = client.post(path, json=wrong)
        assert reply.status_code == 400
        assert "'lora_path' is not a field that this route knows" in reply.text
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema_of(description, path))
    assert not models.requests


def test_it_does_not_tell_the_wire_format(client: TestClient) -> None:
    pairs = client.post("/v1/score", json={"query": None, **PAIRS})
    assert [each["object"] for each in pairs.json()["data"]] == ["score"] * 2
    ranked = client.post("/rerank", json={"texts": None, **RERANK})
    assert len(ranked.json()["results"]) == 2


def objects_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all objects in JSON, but for what is free."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if isinstance(value, dict) and path and path[-1] not in FREE else []
    return found + [each for key, part in inner if key not in FREE for each in objects_of(part, (*path, key))]


# Objects of whatever keys callers choose.
FREE = ("state", "criteria", "questions", "parameters", "schema", "json")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NULLS = {"const": None, "enum": [None]}
WISHES = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"default": None}}}],
    "stream_options": {"include_usage": None},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NULLS}},
}
NESTED = [
    *CASES,
    ("/v1/chat/completions", {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "none", **WISHES}),
]


@pytest.mark.parametrize(("path", "body"), first_of(*NESTED, others=pytest.mark.slow), ids=range(len(NESTED)))
def test_within_a_field_it_may_be_null_too(
    client: TestClient, models: FaultyServer, description: Any, path: str, body: dict[str, Any]
) -> None:
    plain = client.post(path, json=body)
    assert plain.status_code == 200
    for at in objects_of(body):
        changed = copy.deepcopy(body)
        reduce(operator.getitem, at, changed)["known_to_nobody"] = None
        jsonschema.validate(changed, schema_of(description, path))
        models.requests.clear()
        assert client.post(path, json=changed).status_code == 200, at
        seen = [str(request) for request in models.requests]
        reduce(operator.getitem, at, changed)["known_to_nobody"] = 1
        try:
            jsonschema.validate(changed, schema_of(description, path))
            expected = 200  # a few objects are as open as other servers have them
        except jsonschema.ValidationError:
            expected = 400
        assert client.post(path, json=changed).status_code == expected, at
        assert all("known_to_nobody" not in each for each in seen)
