"""Integers may be written as 16.0, on every route and wherever one may stand; nothing else becomes an integer."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from hiscore.api.body import decode
from hiscore.api.errors import ApiError
from hiscore.api.routes.chat import ChatRequest
from hiscore.api.routes.completions import CompletionRequest
from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import BODIES, LABELS, MESSAGES, PAIRS, RERANK

IDS = {"query": [1, 2], "items": [[3], [4, 5]], "label_token_ids": LABELS}
SAMPLED = {"n": 2, "max_tokens": 16, "min_tokens": 2, "top_k": 3, "seed": -7, "stop_token_ids": [4, 5]}
CHAT = {"messages": MESSAGES}
RERANKED = {"top_n": 1, "max_tokens_per_doc": 16, "max_tokens_per_query": 16, "truncate_prompt_tokens": 200}
# By route: bodies without, and the fields that hold integers.
CASES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "/v1/score": [({}, IDS), (IDS, {"label_counts": [1, 1]}), (PAIRS, {"truncate_prompt_tokens": 200})],
    "/score": [(PAIRS, {"truncate_prompt_tokens": 200})],
    "/v1/rerank": [(RERANK, RERANKED)],
    "/v2/rerank": [(RERANK, RERANKED)],
    "/rerank": [(RERANK, RERANKED), (BODIES["/rerank"][0], {"top_n": 1})],
    "/v1/completions": [
        ({"prompt": "a"}, {**SAMPLED, "best_of": 2, "logprobs": 1}),
        ({}, {"prompt": [1, 2, 3]}),
        ({}, {"prompt": [[1, 2], [3]]}),
    ],
    "/v1/chat/completions": [
        (CHAT, SAMPLED),
        ({**CHAT, "logprobs": True}, {"top_logprobs": 1}),
        (CHAT, {"max_completion_tokens": 3}),
    ],
}
SINGLE = [
    (path, {**body, **fields}, name)
    for path, cases in CASES.items()
    for body, fields in cases
    for name in fields
]
NAMES = [f"{path}-{name}-{index}" for index, (path, _, name) in enumerate(SINGLE)]
WRONG = {
    "half": 16.5,
    "true": True,
    "text": "16",
    "object": {},
    "huge": 1e300,
    "not a number": math.nan,
    "infinite": math.inf,
}
NO_JSON = {"not a number", "infinite"}
# Lists of texts are something else there.
TEXTS = {("prompt", "text"), ("items", "text"), ("query", "text")}


def each_integer(value: Any, made: Callable[[int], Any]) -> Any:
    """A field with something made of each of its integers."""
    return [each_integer(each, made) for each in value] if isinstance(value, list) else made(value)


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    return client.post(
        path,
        content=json.dumps(body),
        headers={"content-type": "application/json", "x-request-id": "mine"},
    )


def asked(client: TestClient, models: FaultyServer, path: str, body: dict[str, Any]) -> tuple[Any, Any]:
    """The answer to a body, and what the models were asked for it."""
    models.requests.clear()
    reply = post(client, path, body)
    assert reply.status_code == 200, reply.text
    assert models.requests
    for request in models.requests:
        # The time that is left.
        request.parameters.pop("timeout")
    answer = reply.json()
    if "created" in answer:
        del answer["created"]
    return answer, sorted(each.SerializeToString(deterministic=True) for each in models.requests)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "name"), SINGLE, ids=NAMES)
def test_a_float_without_a_fraction_is_an_integer(
    client: TestClient, models: FaultyServer, path: str, body: dict[str, Any], name: str
) -> None:
    floats = {**body, name: each_integer(body[name], float)}
    assert json.dumps(floats) != json.dumps(body)
    assert asked(client, models, path, floats) == asked(client, models, path, body)
    description = client.get("/openapi.json").json()
    schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate(floats, {**schema, "components": description["components"]})


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "name"), SINGLE, ids=NAMES)
def test_nothing_else_is(
    client: TestClient, models: FaultyServer, path: str, body: dict[str, Any], name: str
) -> None:
    for kind, value in WRONG.items():
        if (name, kind) in TEXTS:
            continue
        reply = post(client, path, {**body, name: each_integer(body[name], lambda _, value=value: value)})
        assert reply.status_code == 400, (kind, reply.text)
        assert kind in NO_JSON or name in reply.text
    assert not models.requests


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": "2"}, "'n': Expected `int | null`, got `str`"),
        ({"n": 129.0}, "'n': Expected `int` <= 128"),
        ({"n": 1.5}, "'n': Expected `int | null`, got `float`"),
        ({"prompt": [[1.0], [2.5]]}, "'prompt[1][0]': Expected `int`, got `float`"),
        ({"prompt": ["a", 1.0]}, "'prompt[1]': Expected `int | str | array`, got `float`"),
        ({"temperature": "0.5"}, "'temperature': Expected `float | null`, got `str`"),
        ({"stream": 1.0}, "'stream': Expected `bool | null`, got `float`"),
        ({"stop": 1.0}, "'stop': Expected `str | array | null`, got `float`"),
        ({"nn": 1.0}, "'nn' is not a field"),
    ],
)
def test_beside_a_float_without_a_fraction_all_else_is_checked_as_ever(
    given: dict[str, Any], says: str
) -> None:
    body = {"prompt": "a", "max_tokens": 16.0, **given}
    with pytest.raises(ApiError) as caught:
        decode(json.dumps(body).encode(), CompletionRequest)
    assert says in caught.value.message


def test_what_is_free_keeps_its_floats() -> None:
    free = {"whole": 16.0, "list": [1.0, 2], "text": "16.0"}
    body = {**CHAT, "max_tokens": 16.0, "chat_template_kwargs": free, "temperature": 1.0}
    request = decode(json.dumps(body).encode(), ChatRequest)
    assert json.dumps(request.chat_template_kwargs) == json.dumps(free)
    assert (request.max_tokens, type(request.max_tokens), request.temperature) == (16, int, 1.0)


def test_every_field_of_integers_is_tried(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]

    def holds_integers(schema: Any) -> bool:
        inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
        return schema.get("type") == "integer" or any(map(holds_integers, inner))

    def properties(schema: Any) -> Iterator[tuple[str, Any]]:
        for each in schema.get("anyOf", []):
            yield from properties(each)
        if "$ref" in schema:
            yield from schemas[schema["$ref"].rpartition("/")[2]]["properties"].items()

    for path, routes in description["paths"].items():
        schema = routes["post"]["requestBody"]["content"]["application/json"]["schema"]
        found = {name for name, each in properties(schema) if holds_integers(each)}
        assert found == {name for route, _, name in SINGLE if route == path}, path
