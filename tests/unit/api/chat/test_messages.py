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


def read(*messages: dict[str, Any], takes_parts: bool = False) -> list[dict[str, Any]]:
    """What the template is given of a caller's messages."""
    return as_template_knows(msgspec.convert(messages, type=list[ChatMessage]), True, takes_parts)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def said(content: Any = "a", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def called(arguments: Any) -> dict[str, Any]:
    return {"name": "f", "arguments": arguments}


def call_with(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_parts_of_text_and_refusals_are_joined() -> None:
    parts = [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I cannot."}]
    assert read(said(parts))[0]["content"] == "No.\nI cannot."


def test_a_template_that_takes_parts_gets_those_of_a_user() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    given = {"role": "system", "content": parts}, user(parts), user(parts[:1])
    known = [{"type": "text", "text": text} for text in "ab"]
    assert [each["content"] for each in read(*given, takes_parts=True)] == ["a\nb", known, "a"]
    assert [each["content"] for each in read(*given)] == ["a\nb", "a\nb", "a"]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "text": "a"}, "is not served"),
        ({"type": "text"}, "has no text"),
        ({"type": "refusal", "text": "a"}, "has no text"),
    ],
)
def test_control_other_parts_are_refused(part: dict[str, str], why: str) -> None:
    with pytest.raises(ApiError, match=f"'{part['type']}' {why}"):
        read(said([part]))


@pytest.mark.parametrize(
    "arguments",
    ["no JSON", "[1]", "NaN", '{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud83d"}', r'{"\udf4e": 1}',
     '{"a": ' + "9" * 5_000 + "}", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"],
)  # fmt: skip
def test_arguments_that_are_no_json_object_are_refused(arguments: str) -> None:
    with pytest.raises(ApiError, match="the arguments of 'look' are no JSON object") as caught:
        read(call_with(arguments))
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
    (message,) = read(call_with(arguments))
    found = message["tool_calls"][0]["function"]["arguments"]
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("other", "usual"),
    [
        (user([{"type": "input_text", "text": "a"}]), user("a")),
        (user(["a", {"type": "text", "text": "b"}]), user("a\nb")),
        (user("a", cache_control={"type": "ephemeral"}), user("a")),
        (said([{"type": "output_text", "text": "a"}]), said()),
        (said(reasoning="why"), said(reasoning_content="why")),
        (said(reasoning="not this", reasoning_content="why"), said(reasoning_content="why")),
        (
            said(None, tool_calls=[{"function": called({"a": [1, {"b": None}]})}]),
            said(None, tool_calls=[{"function": called('{"a": [1, {"b": null}]}')}]),
        ),
        (said(None, function_call=called("{}")), said(None, tool_calls=[{"function": called("{}")}])),
        ({"role": "function", "name": "f", "content": "a"}, {"role": "tool", "name": "f", "content": "a"}),
    ],
)
def test_what_other_servers_take_is_read_as_openais(other: dict[str, Any], usual: dict[str, Any]) -> None:
    assert read(other) == read(usual)


OFFERED: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def use_of(choice: Any, offered: list[dict[str, Any]] = OFFERED) -> ToolUse:
    conversations = cast(Conversations, SimpleNamespace(takes_tools=True, tool_format=FORCED))
    tools = msgspec.convert(offered, type=list[Tool])
    return tool_use(tools, msgspec.convert(choice, type=ToolChoice), True, conversations)


def allowing(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_where_a_tool_may_be_cached_is_not_for_the_template() -> None:
    cached = [{**OFFERED[0], "cache_control": {"type": "ephemeral"}}]
    assert use_of("required", cached) == use_of("required", OFFERED[:1])
    assert use_of("required", cached).tools == OFFERED[:1]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_all_that_the_model_knows(mode: str) -> None:
    found = use_of(allowing(OFFERED[2], OFFERED[0], mode=mode))
    assert found.tools == [OFFERED[0], OFFERED[2]]
    assert (found.grammar is None) == (mode == "auto")
    names = [json.dumps(json.dumps(name)) for name in "fgh"]
    assert found.grammar is None or [name in found.grammar for name in names] == [True, False, True]
    # The control: one that must be called leaves the others in the prompt.
    assert use_of(OFFERED[0]).tools == OFFERED


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (allowing(), "names no function"),
        ({"type": "allowed_tools"}, "names no function"),
        (allowing({"function": {"name": "x"}}), "'x': not in 'tools'"),
        ({"type": "function", "function": {"name": "x"}}, "'x': not in 'tools'"),
    ],
)
def test_tools_that_are_not_there_cannot_be_chosen(choice: Any, says: str) -> None:
    with pytest.raises(ApiError, match=says) as caught:
        use_of(choice)
    assert caught.value.param == "tool_choice"
