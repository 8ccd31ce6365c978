"""``/v1/chat/completions``: fields of other servers that change nothing as they stand by default."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer

from hiscore.api.http.encoding import LARGE_CHARACTERS
from hiscore.prompts.conversation import ChatPrompt, Conversations
from tests.client.faulty_server import FaultyServer
from tests.support.api_bodies import MESSAGES
from tests.support.chat_templates import CHATML

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


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The thread and the variables of each prompt that is made."""
    made: list[tuple[str, Any]] = []

    def prompt(self: Conversations, messages: Any, tools: Any, **variables: Any) -> ChatPrompt:
        made.append((threading.current_thread().name, variables))
        return ChatPrompt([1], False)

    monkeypatch.setattr(Conversations, "prompt", prompt)
    return made


ENABLED = {"type": "enabled"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {**ENABLED, "budget_tokens": 1_024}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        # What the template is told by its own names comes first.
        (
            {"thinking": ENABLED, "chat_template_kwargs": {"thinking": False}},
            {"enable_thinking": True, "thinking": False},
        ),
    ],
)
def test_thinking_is_told_the_template(
    client: TestClient, prompts: list[tuple[str, Any]], given: Any, expected: Any
) -> None:
    assert client.post(ROUTE, json={"messages": MESSAGES, **given}).status_code == 200
    assert [variables for _, variables in prompts] == [expected]


AN_ANSWER: list[dict[str, Any]] = [
    {"stop": "a"},
    {"regex": "a"},
    {"ebnf": 'root ::= "a"'},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"choice": ["a"]}},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
]


@pytest.mark.parametrize(
    ("ending", "separate", "marks"),
    [
        ("{# </think> #}<think>\n", True, ["</think>"]),
        ("{# </think> #}", True, ["<think>", "</think>"]),
        # There is no reasoning to come, or none to be told apart.
        ("<think>\n\n</think>\n\n", True, None),
        ("{# </think> #}<think>\n", False, None),
        ("", True, None),
    ],
)
def test_what_holds_for_an_answer_begins_behind_its_reasoning(
    make_client: Callable[..., TestClient],
    models: FaultyServer,
    checkpoint: Path,
    tmp_path: Path,
    ending: str,
    separate: bool,
    marks: Any,
) -> None:
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(f"{{# tools #}}{CHATML}{ending}")
    client = make_client(checkpoint=tmp_path)
    for given in ({}, *AN_ANSWER):
        reply = client.post(ROUTE, json={"messages": MESSAGES, "separate_reasoning": separate, **given})
        assert reply.status_code == 200, reply.text
        sent = models.requests[-1].parameters
        assert ("reasoning" in sent) == bool(marks and given), given
        if "reasoning" in sent:
            assert json.loads(sent["reasoning"].string_param) == marks


@pytest.mark.parametrize("mark", ["", "</think>", "<tool_call>", "</tool_call>"])
def test_marks_that_are_special_tokens_have_text(
    make_client: Callable[..., TestClient], models: FaultyServer, checkpoint: Path, tmp_path: Path, mark: str
) -> None:
    """Left out of the text, reasoning and calls would be the answer, or the answer would be reasoning."""
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(f"{{# tools arguments <tool_call> </think> #}}{CHATML}")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens([mark] if mark else [])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tools = [{"type": "function", "function": {"name": "f"}}]
    reply = make_client(checkpoint=tmp_path).post(ROUTE, json={"messages": MESSAGES, "tools": tools})
    assert reply.status_code == 200, reply.text
    assert ("skip_special_tokens" in models.requests[-1].parameters) == bool(mark)


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
    client: TestClient, prompts: list[tuple[str, Any]], given: Any, on_the_loop: bool
) -> None:
    assert client.post(ROUTE, json={"messages": MESSAGES, **given}).status_code == 200
    # The loop runs on a thread of the client's.
    assert prompts[0][0].startswith("asyncio_") == (not on_the_loop)


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
