"""The tools that a chat request lets the model call, and how its answer is read and confined for that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from hiscore.api.chat.call_grammar import grammar_of_calls
from hiscore.api.chat.messages import ChosenTools, Function, FunctionName, Tool
from hiscore.api.http.errors import bad_request
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.tool_calls import FORCED, ToolFormat

ToolChoice: TypeAlias = Literal["none", "auto", "required"] | ChosenTools


@dataclass(frozen=True)
class ToolUse:
    """The use that a request makes of tools.

    The template gets `tools`, calls are written in `format`, and `grammar` confines the whole answer. `words` are
    the caller's for what `decode` calls the parts of that grammar.
    """

    tools: list[Any] | None = None
    format: ToolFormat | None = None
    grammar: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)


def offered(
    tools: list[Tool] | None,
    choice: ToolChoice | None,
    functions: list[Function] | None,
    call: Literal["none", "auto"] | FunctionName | None,
) -> tuple[list[Tool] | None, ToolChoice | None]:
    """Return the tools and the choice of a request, which may name both as OpenAI did first."""
    if not functions and not isinstance(call, FunctionName):
        return tools, choice
    if tools or choice or not functions:
        raise bad_request("'function_call' needs 'functions', and neither stands beside 'tools'", "functions")
    made = [Tool("function", function) for function in functions]
    return made, ChosenTools(function=call) if isinstance(call, FunctionName) else call


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    parallel: bool,
    conversations: Conversations,
    answer: str | None = None,
) -> ToolUse:
    """Read the tools that a request offers and the calls that it asks for, several if `parallel`.

    Args:
        answer: The JSON schema of an answer that is no call.
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
        written = conversations.tool_format
        if not written.begin:
            written = replace(written, offered=frozenset(tool.function.name for tool in tools))
        if answer is None:
            return ToolUse(given, written)
        token_of = conversations.tokenizer.token_at_start
        return ToolUse(given, written, *grammar_of_calls(tools, written.layout, parallel, answer, token_of))
    if isinstance(choice, ChosenTools):
        tools, parallel = _named([choice.function], tools), False
    return ToolUse(given, FORCED, *grammar_of_calls(tools, FORCED.layout, parallel))


def _named(functions: Sequence[FunctionName | None], tools: Sequence[Tool]) -> list[Tool]:
    names = {function.name for function in functions if function is not None}
    if not names:
        raise bad_request("'tool_choice' names no function", "tool_choice")
    if unknown := names - {tool.function.name for tool in tools}:
        raise bad_request(f"'tool_choice' names '{min(unknown)[:64]}': not in 'tools'", "tool_choice")
    return [tool for tool in tools if tool.function.name in names]
