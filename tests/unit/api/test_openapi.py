"""The OpenAPI description: it describes the bodies that the routes take."""

import copy
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from tests.support.api_bodies import BODIES, posted
from tests.unit.api.conftest import schema_of


def test_every_reference_leads_somewhere(description: Any) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [each for value in node.values() for each in references(value)]
        return [each for value in node for each in references(value)] if isinstance(node, list) else []

    found = references(description)
    assert found
    for reference in found:
        assert reference.removeprefix("#/components/schemas/") in description["components"]["schemas"]
    operations = [each for methods in description["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    assert {tag for each in operations for tag in each["tags"]} == {
        each["name"] for each in description["tags"]
    }
    assert all(each["summary"] for each in operations)


def test_every_example_is_answered(client: TestClient, description: Any) -> None:
    for path in posted(description):
        example = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        jsonschema.validate(example, schema_of(description, path))
        assert client.post(path, json=example).status_code == 200, path


def test_pages_are_described(client: TestClient, description: Any) -> None:
    pages = {path: methods["get"] for path, methods in description["paths"].items() if "get" in methods}
    assert "/health" in pages
    (name,) = (each["id"] for each in client.get("/v1/models").json()["data"])
    for path, page in pages.items():
        reply = client.get(path.replace("{name}", name))
        assert reply.status_code == 200
        (media_type,) = page["responses"]["200"]["content"]
        assert reply.headers["content-type"].startswith(media_type)


def test_bodies_and_answers_are_as_described(client: TestClient, description: Any) -> None:
    assert posted(description)
    for path in posted(description):
        for body in BODIES[path]:
            jsonschema.validate(body, schema_of(description, path))
            reply = client.post(path, json=body)
            assert reply.status_code == 200
            if reply.headers["content-type"] == "application/json":
                jsonschema.validate(reply.json(), schema_of(description, path, answer=True))


def test_control_other_bodies_are_not(description: Any) -> None:
    for path in posted(description):
        for body in BODIES[path]:
            for wrong in ({**copy.deepcopy(body), "lora": 1}, {}, [body], None):
                if wrong == {} and path in ("/score", "/v1/score", "/tokenize"):
                    continue  # vLLM's have several names or kinds of what they need, so none is required
                with pytest.raises(jsonschema.ValidationError):
                    jsonschema.validate(wrong, schema_of(description, path))
