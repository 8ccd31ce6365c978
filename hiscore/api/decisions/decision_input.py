"""The input of ``/v1/decisions`` as a list: messages, calls of tools and what they gave."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from hiscore.api.content import InputImage, InputJson, InputText, OutputText, Part, Refusal, text_of_parts
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import Ignored
from hiscore.prompts.decisions import Message

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
CALLS = ("function_call", "custom_tool_call")
# What each kind of item needs, and what the others must not have.
FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
OPTIONAL = ("phase", "namespace", "status", "id", "type")
_ASSISTANT = (OutputText, Refusal)
_OTHERS = (InputText, InputJson, InputImage)


class InputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message, or one of the items of tools; which fields it has depends on its type."""

    type: Literal[
        "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"
    ] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    phase: Ignored = None
    namespace: str | None = None
    status: Ignored = None
    id: Ignored = None


def messages_of(items: Sequence[InputItem]) -> list[Message]:
    """Make the messages of an input, with calls of tools as text; raises `ApiError` for what no text can say."""
    if not items:
        raise bad_request("'input' is empty: give a text, or at least one message", "input")
    messages = []
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        param = f"input[{index}]"
        _check_fields(item, param)
        if item.type == "message":
            messages.append(_message(item, param))
            continue
        call_id = item.call_id or ""
        if item.type in CALLS:
            name = f"{item.namespace}.{item.name}" if item.namespace else item.name or ""
            names[call_id] = name
            given = item.arguments if item.type == "function_call" else item.input
            messages.append(Message("assistant", f"Call of the tool {name}: {given}"))
        elif call_id in names:
            text = text_of_parts(item.output or "", f"{param}.output")
            messages.append(Message("user", f"Output of the tool {names[call_id]}: {text}"))
        else:
            raise bad_request(f"'{param}.call_id' is that of no earlier call", f"{param}.call_id")
    return messages


def _message(item: InputItem, param: str) -> Message:
    role, content = item.role or "user", item.content or ""
    if isinstance(content, list):
        known = _ASSISTANT if role == "assistant" else _OTHERS
        for index, part in enumerate(content):
            if isinstance(part, (*_ASSISTANT, *_OTHERS)) and not isinstance(part, known):
                kind, at = part.__struct_config__.tag, f"{param}.content[{index}]"
                raise bad_request(f"'{at}' is '{kind}', which a message of role '{role}' cannot hold", at)
    return Message(ROLES[role], text_of_parts(content, f"{param}.content"))


def _check_fields(item: InputItem, param: str) -> None:
    needed = FIELDS[item.type]
    for name in item.__struct_fields__:
        given, field = getattr(item, name) is not None, f"{param}.{name}"
        if name in needed and not given:
            raise bad_request(f"'{field}' is missing: items of type '{item.type}' need it", field)
        if given and name not in (*needed, *OPTIONAL):
            raise bad_request(f"'{field}' has no place in an item of type '{item.type}'", field)
