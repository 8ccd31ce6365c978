"""A field that nobody knows may be null: clients that write out all of theirs send it."""

from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import CASES, MESSAGES, PAIRS, RERANK
from tests.unit.api.conftest import schema_of

NAMES = [f"{path}-{index}" for index, (path, _) in enumerate(CASES)]


@pytest.mark.parametrize(("path", "body"), CASES, ids=NAMES)
def test_it_is_as_if_it_were_not_there(
    client: TestClient, description: Any, path: str, body: dict[str, Any]
) -> None:
    with_nulls = {"lora_path": None, **body, "web_search_options": None}
    jsonschema.validate(with_nulls, schema_of(description, path))
    assert client.post(path, json=with_nulls).status_code == client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(("path", "body"), CASES, ids=NAMES)
def test_control_with_a_value_it_is_refused_by_name(
    client: TestClient, models: FaultyServer, description: Any, path: str, body: dict[str, Any]
) -> None:
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


def test_control_within_a_field_it_is_refused(client: TestClient) -> None:
    body = {"messages": [{**MESSAGES[0], "weight": None}]}
    reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert "'weight' is not a field" in reply.text
