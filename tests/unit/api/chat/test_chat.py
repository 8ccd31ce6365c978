"""``/v1/chat/completions``: fields of other servers that change nothing as they stand by default."""

import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from hiscore.api.http.encoding import LARGE_CHARACTERS
from hiscore.prompts.conversation import ChatPrompt, Conversations
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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1_024}},
            {"enable_thinking": True, "thinking": True},
        ),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        # What the template is told by its own names comes first.
        (
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": False}},
            {"enable_thinking": True, "thinking": False},
        ),
    ],
)
def test_thinking_is_told_the_template(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, given: Any, expected: Any
) -> None:
    seen: list[Any] = []

    def prompt(self: Conversations, messages: Any, tools: Any, **variables: Any) -> ChatPrompt:
        seen.append(variables)
        return ChatPrompt([1], False)

    monkeypatch.setattr(Conversations, "prompt", prompt)
    assert client.post(ROUTE, json={"messages": MESSAGES, **given}).status_code == 200
    assert seen == [expected]


LONG = "a" * LARGE_CHARACTERS
CALLS = [{"function": {"name": "f", "arguments": {"text": LONG}}}]


@pytest.mark.parametrize(
    ("given", "on_the_loop"),
    [
        ({}, True),
        ({"messages": [{"role": "user", "content": LONG}]}, False),
        ({"messages": [*MESSAGES, {"role": "assistant", "reasoning_content": LONG}]}, False),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": CALLS}]}, False),
        ({"messages": [{**MESSAGES[0], "name": LONG}]}, False),
        ({"chat_template_kwargs": {"documents": [LONG]}}, False),
    ],
)
def test_a_long_text_becomes_a_prompt_beside_the_loop_wherever_it_stands(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, given: Any, on_the_loop: bool
) -> None:
    threads: list[str] = []

    def prompt(self: Conversations, messages: Any, tools: Any, **variables: Any) -> ChatPrompt:
        threads.append(threading.current_thread().name)
        return ChatPrompt([1], False)

    monkeypatch.setattr(Conversations, "prompt", prompt)
    assert client.post(ROUTE, json={"messages": MESSAGES, **given}).status_code == 200
    # The loop runs on a thread of the client's.
    assert threads[0].startswith("asyncio_") == (not on_the_loop)


@pytest.mark.slow
def test_what_is_nested_too_deeply_is_refused_though_it_can_be_read(client: TestClient) -> None:
    def asked(levels: int) -> list[int]:
        deep = '{"a":' * levels + "1" + "}" * levels
        messages = json.dumps(MESSAGES)
        calls = [f'{{"function": {{"name": "f", "arguments": {each}}}}}' for each in (deep, json.dumps(deep))]
        bodies = [
            f'{{"messages": {messages}, "chat_template_kwargs": {deep}}}',
            *(f'{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}' for call in calls),
        ]
        headers = {"content-type": "application/json"}
        replies = [client.post(ROUTE, content=body, headers=headers) for body in bodies]
        return [reply.status_code for reply in replies]

    assert asked(50) == [200] * 3
    assert asked(100_000) == [400] * 3
    # How many can be read depends on the interpreter.
    for levels in range(500, 1000, 50):
        assert set(asked(levels)) <= {200, 400}, levels
