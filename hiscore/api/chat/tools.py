"""The tools that a chat request lets the model call, and how its answer is read and confined for that."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from hiscore.api.chat.messages import ChosenTools, FunctionName, Tool
from hiscore.api.http.errors import bad_request
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.tool_calls import FORCED, ToolFormat

# Of llguidance: a small model in doubt would write white space to the end.
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

ToolChoice: TypeAlias = Literal["none", "auto", "required"] | ChosenTools


@dataclass(frozen=True)
class ToolUse:
    """The use that a request makes of tools.

    The template gets `tools`, calls are written in `format`, and JSON Schema `schema` confines the whole answer.
    """

    tools: list[Any] | None = None
    format: ToolFormat | None = None
    schema: str | None = None


def tool_use(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool, conversations: Conversations
) -> ToolUse:
    """Read the tools that a request offers and the calls that it asks for, several if `parallel`.

    Raises:
        ApiError: The request cannot be served with this template.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("'tool_choice' asks for a call, but there are no 'tools'", "tool_choice")
        return ToolUse()
    if isinstance(choice, ChosenTools) and choice.allowed_tools is not None:
        # The model is told of no others, since nothing would keep it from calling them.
        allowed = choice.allowed_tools
        tools, choice = _named([tool.function for tool in allowed.tools], tools), allowed.mode
    if choice == "none":
        return ToolUse()
    if not conversations.takes_tools:
        raise bad_request("'tools' are not served: this model's chat template has no place for them", "tools")
    given = [{"type": tool.type, "function": msgspec.to_builtins(tool.function)} for tool in tools]
    if choice in (None, "auto"):
        if conversations.tool_format is None:
            raise bad_request(
                "'tools' need 'tool_choice' \"required\" or \"none\" here: how this model writes calls by itself "
                "is not known",
                "tools",
            )
        return ToolUse(given, conversations.tool_format)
    if isinstance(choice, ChosenTools):
        return ToolUse(given, FORCED, _schema(_named([choice.function], tools), 1))
    return ToolUse(given, FORCED, _schema(tools, None if parallel else 1))


def _named(functions: Sequence[FunctionName | None], tools: Sequence[Tool]) -> list[Tool]:
    """Pick the tools that `tool_choice` names."""
    names = {function.name for function in functions if function is not None}
    if not names:
        raise bad_request("'tool_choice' names no function", "tool_choice")
    if unknown := names - {tool.function.name for tool in tools}:
        raise bad_request(f"'tool_choice' names '{min(unknown)[:64]}': not in 'tools'", "tool_choice")
    return [tool for tool in tools if tool.function.name in names]


def _schema(tools: Sequence[Tool], most: int | None) -> str:
    """Make the schema of a list of calls."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"enum": [tool.function.name]},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    bounds = {"minItems": 1} | ({"maxItems": most} if most else {})
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return json.dumps({"type": "array", "items": items, **bounds, "x-guidance": ONE_LINE})
