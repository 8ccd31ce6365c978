"""``/v1/chat/completions``: fields of other servers that change nothing as they stand by default."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import MESSAGES

ROUTE = "/v1/chat/completions"
BY_DEFAULT: dict[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "continue_final_message": False,
    "echo": False,
    "include_reasoning": True,
    "stream_reasoning": True,
    "verbosity": "medium",
}


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_a_default_is_taken_and_anything_else_refused(
    client: TestClient, models: FaultyServer, name: str
) -> None:
    usual = BY_DEFAULT[name]
    assert client.post(ROUTE, json={"messages": MESSAGES, name: usual}).status_code == 200
    models.requests.clear()
    other = not usual if isinstance(usual, bool) else "low"
    reply = client.post(ROUTE, json={"messages": MESSAGES, name: other})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == name
    assert not models.requests


def test_a_salt_reaches_the_models(client: TestClient, models: FaultyServer) -> None:
    assert client.post(ROUTE, json={"messages": MESSAGES, "cache_salt": "mine"}).status_code == 200
    assert models.requests[-1].parameters["cache_salt"].string_param == "mine"
