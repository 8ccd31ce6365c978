"""The OpenAPI description: it describes the bodies that the routes take."""

import copy
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from tests.support.api_bodies import BODIES
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
    identifiers = [each["post"]["operationId"] for each in description["paths"].values()]
    assert len(set(identifiers)) == len(identifiers)


def test_bodies_and_answers_are_as_described(client: TestClient, description: Any) -> None:
    assert description["paths"]
    for path in description["paths"]:
        for body in BODIES[path]:
            jsonschema.validate(body, schema_of(description, path))
            reply = client.post(path, json=body)
            assert reply.status_code == 200
            if reply.headers["content-type"] == "application/json":
                jsonschema.validate(reply.json(), schema_of(description, path, answer=True))


def test_control_other_bodies_are_not(description: Any) -> None:
    for path in description["paths"]:
        for body in BODIES[path]:
            for wrong in ({**copy.deepcopy(body), "lora": 1}, {}, [body], None):
                if wrong == {} and path in ("/score", "/v1/score"):
                    continue  # vLLM's has several names for each of its fields, so none is required
                with pytest.raises(jsonschema.ValidationError):
                    jsonschema.validate(wrong, schema_of(description, path))
