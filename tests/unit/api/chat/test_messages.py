import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hiscore.api.chat.messages import ChatMessage, Tool, as_template_knows
from hiscore.api.chat.tools import ToolChoice, ToolUse, tool_use
from hiscore.api.http.errors import ApiError
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.tool_calls import FORCED


def call_with(arguments: str) -> list[ChatMessage]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return msgspec.convert(
        [{"role": "assistant", "content": None, "tool_calls": [call]}], type=list[ChatMessage]
    )


def test_parts_of_text_and_refusals_are_joined() -> None:
    parts = [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I cannot."}]
    messages = msgspec.convert([{"role": "assistant", "content": parts}], type=list[ChatMessage])
    assert as_template_knows(messages, True)[0]["content"] == "No.\nI cannot."


def test_a_template_that_takes_parts_gets_those_of_a_user() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = [{"role": role, "content": parts} for role in ("system", "user")]
    given = msgspec.convert([*messages, {"role": "user", "content": parts[:1]}], type=list[ChatMessage])
    known = [{"type": "text", "text": text} for text in "ab"]
    assert [each["content"] for each in as_template_knows(given, True, True)] == ["a\nb", known, "a"]
    assert [each["content"] for each in as_template_knows(given, True, False)] == ["a\nb", "a\nb", "a"]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "text": "a"}, "is not served"),
        ({"type": "text"}, "has no text"),
        ({"type": "refusal", "text": "a"}, "has no text"),
    ],
)
def test_control_other_parts_are_refused(part: dict[str, str], why: str) -> None:
    messages = msgspec.convert([{"role": "assistant", "content": [part]}], type=list[ChatMessage])
    with pytest.raises(ApiError, match=f"'{part['type']}' {why}"):
        as_template_knows(messages, True)


@pytest.mark.parametrize(
    "arguments",
    ["no JSON", "[1]", "NaN", '{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud83d"}', r'{"\udf4e": 1}',
     '{"a": ' + "9" * 5_000 + "}", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"],
)  # fmt: skip
def test_arguments_that_are_no_json_object_are_refused(arguments: str) -> None:
    with pytest.raises(ApiError, match="the arguments of 'look' are no JSON object") as caught:
        as_template_knows(call_with(arguments), True)
    assert caught.value.param == "messages[0].tool_calls"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ('{"b": 1, "a": 1.0, "c": 123456789012345678901234567890}',
         {"b": 1, "a": 1.0, "c": 123456789012345678901234567890}),
        (r'{"a": "\ud83c\udf4e"}', {"a": "🍎"}),
    ],
)  # fmt: skip
def test_control_a_json_object_is_read(arguments: str, expected: dict[str, object]) -> None:
    (message,) = as_template_knows(call_with(arguments), True)
    read = message["tool_calls"][0]["function"]["arguments"]
    assert read == expected
    assert list(read) == list(expected)


def read(message: dict[str, Any]) -> dict[str, Any]:
    return as_template_knows([msgspec.convert(message, type=ChatMessage)], True)[0]


@pytest.mark.parametrize(
    ("other", "usual"),
    [
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "why"},
            {"role": "assistant", "content": "a", "reasoning_content": "why"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "not this", "reasoning_content": "why"},
            {"role": "assistant", "content": "a", "reasoning_content": "why"},
        ),
        (
            {"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": "a"},
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, {"b": None}]}}}],
            },
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": '{"a": [1, {"b": null}]}'}}],
            },
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        ),
        (
            {"role": "function", "name": "f", "content": "a"},
            {"role": "tool", "name": "f", "content": "a"},
        ),
    ],
)
def test_what_other_servers_take_is_read_as_openais(other: dict[str, Any], usual: dict[str, Any]) -> None:
    assert read(other) == read(usual)


def test_where_a_tool_may_be_cached_is_not_for_the_template() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    conversations = cast(Conversations, SimpleNamespace(takes_tools=True, tool_format=None))
    found = [
        tool_use(msgspec.convert([each], type=list[Tool]), "required", True, conversations)
        for each in (tool, {**tool, "cache_control": {"type": "ephemeral"}})
    ]
    assert found[0] == found[1]
    assert found[0].tools == [tool]


OFFERED: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def use_of(choice: Any) -> ToolUse:
    conversations = cast(Conversations, SimpleNamespace(takes_tools=True, tool_format=FORCED))
    tools = msgspec.convert(OFFERED, type=list[Tool])
    return tool_use(tools, msgspec.convert(choice, type=ToolChoice), True, conversations)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_all_that_the_model_knows(mode: str) -> None:
    named = [OFFERED[2], OFFERED[0]]
    found = use_of({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}})
    assert found.tools == [OFFERED[0], OFFERED[2]]
    assert (found.grammar is None) == (mode == "auto")
    assert found.grammar is None or [name in found.grammar for name in _names("fgh")] == [True, False, True]
    # The control: one that must be called leaves the others in the prompt.
    assert use_of(OFFERED[0]).tools == OFFERED


def _names(names: str) -> list[str]:
    return [json.dumps(json.dumps(name)) for name in names]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "names no function"),
        ({"type": "allowed_tools"}, "names no function"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "x"}}]},
            },
            "'x': not in 'tools'",
        ),
        ({"type": "function", "function": {"name": "x"}}, "'x': not in 'tools'"),
    ],
)
def test_tools_that_are_not_there_cannot_be_chosen(choice: Any, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        use_of(choice)
    assert caught.value.param == "tool_choice"
