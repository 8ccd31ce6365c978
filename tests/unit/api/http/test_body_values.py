"""Values of a body are counted before any of them is made."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from hiscore.api.http import body as api_body
from hiscore.api.http import endpoint
from hiscore.api.http.body import count_values
from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import BODIES

ODD_TEXTS = ["", '"', "\\", '\\"', '\\\\"[{', "[]", '{"a": [1]}', "ü[", "\n", "]}", "\\u005b[", '"[{' * 300]
LEAST = 200


def values_of(node: Any) -> int:
    """Texts, keys, lists and objects, by walking through them."""
    if isinstance(node, dict):
        return 1 + sum(1 + values_of(value) for value in node.values())
    if isinstance(node, list):
        return 1 + sum(map(values_of, node))
    return isinstance(node, str)


def any_value(random: random.Random, depth: int) -> Any:
    if depth and random.random() < 0.7:
        children = [any_value(random, depth - 1) for _ in range(random.randrange(6))]
        if random.random() < 0.5:
            return children
        return {f"{random.choice(ODD_TEXTS)}{i}": child for i, child in enumerate(children)}
    return random.choice([*ODD_TEXTS, 1, -2.5, None, True])


def test_values_are_counted_as_a_parser_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_body, "PIECE_BYTES", 64)
    made = [any_value(random.Random(seed), 5) for seed in range(200)]
    assert max(map(values_of, made)) > 100
    for value in made:
        for body in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
            assert count_values(body) == values_of(value), body


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each body that is decoded; the least that is too much is small."""
    monkeypatch.setattr(api_body, "MAX_VALUES", LEAST)
    lengths = []

    def decode(body: bytes, request_type: Any) -> Any:
        lengths.append(len(body))
        return original(body, request_type)

    original = endpoint.decode
    monkeypatch.setattr(endpoint, "decode", decode)
    return lengths


SCORE: dict[str, Any] = {"query": [1], "items": [[1]], "label_token_ids": [5]}
MANY: dict[str, tuple[str, Callable[[int], Any]]] = {
    "items": ("/v1/score", lambda count: {**SCORE, "items": [[7]] * count}),
    "empty items": ("/v1/score", lambda count: {**SCORE, "items": [[]] * count}),
    "texts": ("/v1/score", lambda count: {**SCORE, "query": "a", "items": ["b"] * count}),
    "documents": ("/v1/rerank", lambda count: {"query": "a", "documents": ["b"] * count}),
    "prompts": ("/v1/completions", lambda count: {"prompt": [[7]] * count}),
    "what is ignored": ("/v1/score", lambda count: {**SCORE, "metadata": [[]] * count}),
}


@pytest.mark.parametrize("case", MANY)
def test_too_many_values_are_refused_before_they_are_made(
    client: TestClient, models: FaultyServer, decoded: list[int], case: str
) -> None:
    path, make = MANY[case]
    most = LEAST - (values_of(make(1)) - 1)
    body = make(most + 1)
    reply = client.post(path, json=body)
    assert reply.status_code == 400
    assert f"the body holds {values_of(body)} texts, lists and objects: at most {LEAST}" in reply.text
    assert not decoded
    assert not models.requests
    # The control: one fewer is read.
    reply = client.post(path, json=make(most))
    assert decoded
    assert "the body holds" not in reply.text


def test_what_stands_in_texts_is_not_counted(client: TestClient, decoded: list[int]) -> None:
    text = '[{"' * LEAST
    assert client.post("/v1/score", json={**SCORE, "query": text, "items": [text]}).is_success
    assert decoded


def test_what_others_send_is_far_from_the_limit() -> None:
    most = max(values_of(body) for bodies in BODIES.values() for body in bodies)
    assert most < api_body.MAX_VALUES / 1_000
    # Items of 30 ids each, as many as fit the tokens of one call.
    items = msgspec.json.encode({**SCORE, "items": [[12345] * 30] * (4_000_000 // 30)})
    assert count_values(items) < api_body.MAX_VALUES
