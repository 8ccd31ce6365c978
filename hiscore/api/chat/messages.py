"""Messages and tools of a chat request, from OpenAI's shapes to those that templates know."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from hiscore.api.http.encoding import prompted
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import Ignored
from hiscore.prompts.conversation import ChatPrompt, Conversations

# The last two are those of OpenAI's responses; vLLM takes them here, too.
TEXTS = ("text", "input_text", "output_text")
SERVED = (*TEXTS, "refusal")


class ContentPart(msgspec.Struct):
    """A part of a message; text alone is served, and what the assistant refused."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def content(self) -> str | None:
        """The part's text; None: it is something else."""
        return self.refusal if self.type == "refusal" else self.text if self.type in TEXTS else None


class FunctionCall(msgspec.Struct):
    """A call that the model has made: arguments in JSON, as a text or as they are."""

    name: str
    arguments: str | dict[str, Any]


class Call(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = "function"
    index: Ignored = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: FunctionCall | None = None
    audio: None = None
    annotations: Ignored = None
    cache_control: Ignored = None
    # What clients put into the messages of answers, beside the text that it was made from.
    parsed: Ignored = None
    provider_specific_fields: Ignored = None
    thinking_blocks: Ignored = None
    reasoning_items: Ignored = None
    reasoning_details: Ignored = None


class Function(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function
    cache_control: Ignored = None


class FunctionName(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    function: FunctionName
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ChosenTools(msgspec.Struct):
    type: Literal["function", "allowed_tools"] = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


async def prompt_of(
    conversations: Conversations,
    messages: Sequence[ChatMessage],
    tools: list[Any] | None,
    variables: Mapping[str, Any],
) -> ChatPrompt:
    """Make the prompt of a conversation by the checkpoint's template, or raise `ApiError`."""
    known = as_template_knows(messages, conversations.knows_developers, conversations.takes_parts)
    # Templates may write all of it, not contents alone.
    size = len(msgspec.json.encode((known, tools, variables)))
    return await prompted(
        partial(conversations.prompt, known, tools, **variables), size, "a message", "messages"
    )


def as_template_knows(
    messages: Sequence[ChatMessage], knows_developers: bool, takes_parts: bool = False
) -> list[dict[str, Any]]:
    """Write messages as chat templates read them.

    Args:
        knows_developers: The template does: it gets them as developers, and not as the system.
        takes_parts: It joins the parts of a user's message itself; otherwise each is a line.
    """
    if not messages:
        raise bad_request("'messages' is empty: at least one is needed", "messages")
    return [
        _message(message, f"messages[{index}]", knows_developers, takes_parts)
        for index, message in enumerate(messages)
    ]


def _message(message: ChatMessage, field: str, knows_developers: bool, takes_parts: bool) -> dict[str, Any]:
    # What OpenAI called its first tools, of which a message has at most one call.
    role = "tool" if message.role == "function" else message.role
    calls = message.tool_calls or ([Call(message.function_call)] if message.function_call else [])
    if role == "developer" and not knows_developers:
        role = "system"
    made: dict[str, Any] = {"role": role}
    if message.content is None and message.role != "assistant":
        raise bad_request(f"'{field}.content' is needed", f"{field}.content")
    texts = _texts(message.content, field)
    made["content"] = "\n".join(texts) or (message.refusal or "")
    # Templates that take parts of a system's message may take the first alone.
    if takes_parts and role == "user" and len(texts) > 1:
        made["content"] = [{"type": "text", "text": text} for text in texts]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if message.reasoning is not None:
        made.setdefault("reasoning_content", message.reasoning)
    if calls:
        made["tool_calls"] = [
            {
                "type": "function",
                **({"id": call.id} if call.id is not None else {}),
                "function": {"name": call.function.name, "arguments": _arguments(call, field)},
            }
            for call in calls
        ]
    return made


def _texts(content: str | list[str | ContentPart] | None, field: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.content
        if text is None:
            assert isinstance(part, ContentPart)
            wrong = f"content of type '{part.type[:64]}'"
            why = f"{wrong} has no text" if part.type in SERVED else f"{wrong} is not served: text alone is"
            raise bad_request(why, f"{field}.content")
        texts.append(text)
    return texts


def _arguments(call: Call, field: str) -> dict[str, Any]:
    if isinstance(call.function.arguments, dict):
        return call.function.arguments
    try:
        return msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(
            f"the arguments of '{call.function.name[:64]}' are no JSON object", f"{field}.tool_calls"
        ) from None
