"""The OpenAPI description, generated from the types of requests and answers."""

from collections.abc import Sequence
from typing import Any

import msgspec

from hiscore import __version__
from hiscore.api.http.endpoint import Endpoint

REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    "400": "The request is wrong; the message names the field",
    "401": "No valid API key",
    "408": "The body took too long",
    "413": "The body is too large",
    "415": "The body is not JSON, or compressed in an unknown way",
    "429": "The models are full: try again later",
    "503": "The models do not answer",
    "504": "The models took too long",
}


def describe(endpoints: Sequence[Endpoint]) -> bytes:
    """Describe all POST routes, as JSON."""
    types = [
        kind
        for each in endpoints
        for variant in each.variants
        for kind in (variant.request, variant.response)
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    for component in components.values():
        if component.get("additionalProperties") is False:  # a field that is not known may be null
            component["additionalProperties"] = {"type": "null"}
    schema_of = iter(schemas)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        pairs = [(next(schema_of), next(schema_of)) for _ in endpoint.variants]
        requests, responses = (_one_of(list(column)) for column in zip(*pairs, strict=True))
        paths[endpoint.route] = {"post": _operation(endpoint, requests, responses)}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "hiscore", "version": __version__},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(endpoint: Endpoint, requests: Any, responses: Any) -> dict[str, Any]:
    errors = {status: {"description": text, "content": _json({})} for status, text in ERRORS.items()}
    answers = _json(responses)
    if any(variant.streams for variant in endpoint.variants):
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "operationId": endpoint.route.strip("/").replace("/", "_"),
        "requestBody": {"required": True, "content": _json(requests)},
        "responses": {"200": {"description": "The answer", "content": answers}, **errors},
    }


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _one_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
