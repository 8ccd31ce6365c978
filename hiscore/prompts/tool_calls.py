"""The calls of tools in a model's answer, in the formats that families of checkpoints are trained on."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hiscore.prompts.answer_parts import Content, Part, ToolCall, split_at

# Finds where a value ends; a number of any length is as good as another for that.
DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


class WrittenCall(msgspec.Struct):
    """A call in JSON. Models mix up the names that two families give the arguments."""

    name: str
    arguments: Raw | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET


@dataclass(frozen=True)
class CallLayout:
    """Calls as a grammar has them: each is `call`, with ``$quoted`` or ``$name`` and ``$arguments`` in it."""

    call: str
    before: str = ""
    between: str = ""
    after: str = ""


@dataclass(frozen=True)
class ToolFormat:
    """The way in which a family writes calls.

    Attributes:
        layout: The calls and the marks as the family writes them.
        begin: The mark before calls; empty: an answer that begins with one of `openings` is calls.
        end: The mark behind them; empty: the end of the answer.
        read: The calls of the text between the marks; raises ValueError if they are none.
        id_length: Characters of a call's id, for templates that demand so many; 0: any.
        offered: The functions that may be called, where no mark tells a call from other JSON; empty: any.
    """

    name: str
    begin: str
    end: str
    read: Callable[[str], list[ToolCall]]
    layout: CallLayout
    openings: str = ""
    id_length: int = 0
    offered: frozenset[str] = frozenset()


class ToolCallReader:
    """Finds the calls in one answer. What only looks like one is passed on as text."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._inside = self._undecided = not tool_format.begin
        self._held = ""
        self._space = ""  # what is dropped beside calls
        self._beside = False  # nothing but white space has followed a call

    def push(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        while text:
            if self._undecided:
                if not text.strip():
                    self._held = text
                    break
                self._undecided = False
                self._inside = text.lstrip()[0] in self._format.openings
            if self._inside:
                within, end, after = text.partition(self._format.end) if self._format.end else (text, "", "")
                if not end:
                    self._held = text
                    break
                parts += self._calls(within, end)
                self._inside, text = False, after
                continue
            if not self._format.begin:
                return [*parts, *self._content(text)]
            before, text, self._inside = split_at(text, self._format.begin)
            parts += self._content(before)
            if not self._inside:
                self._held = text
                break
        return parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._inside and not self._undecided:
            return self._calls(held)
        return self._content(held)

    def _content(self, text: str) -> list[Part]:
        """Pass text on, but hold white space back as long as it may stand between two calls."""
        text, self._space = self._space + text, ""
        if self._beside and not text.strip():
            self._space = text
            return []
        self._beside = False
        return [Content(text)] if text else []

    def _calls(self, text: str, end: str = "") -> list[Part]:
        offered = self._format.offered
        try:
            calls = self._format.read(text)
            if offered and not offered.issuperset(call.name for call in calls):
                raise ValueError("a function that nobody offers")
        except (ValueError, RecursionError):
            return self._content(f"{self._format.begin}{text}{end}")
        self._space, self._beside = "", True
        return list(calls)


def read_hermes(text: str) -> list[ToolCall]:
    """``{"name": .., "arguments": {..}}``, as Hermes and Qwen write it."""
    return [_call(msgspec.json.decode(text, type=WrittenCall))]


def read_llama3(text: str) -> list[ToolCall]:
    """``{"name": .., "parameters": {..}}``, several of them separated by semicolons."""
    calls, at = [], 0
    text = text.strip()
    while at < len(text):
        _, end = DECODER.raw_decode(text, at)
        calls.append(_call(msgspec.json.decode(text[at:end], type=WrittenCall), needs_arguments=True))
        rest = text[end:].lstrip(" \n;")
        at = len(text) - len(rest)
    return calls


def read_mistral(text: str) -> list[ToolCall]:
    """A list of ``{"name": .., "arguments": {..}}``, or as later versions write it ``name[ARGS]{..}``."""
    text = text.strip()
    if text.startswith("["):
        return read_list(text)
    calls = []
    for each in text.split("[TOOL_CALLS]"):
        name, mark, arguments = each.partition("[ARGS]")
        if not mark:
            # Between the two, special tokens were left out.
            name, arguments = each[: each.index("{")], each[each.index("{") :]
        name = name.partition("[CALL_ID]")[0].strip()
        calls.append(_call(WrittenCall(name, msgspec.json.decode(arguments, type=Raw))))
    return calls


def read_list(text: str) -> list[ToolCall]:
    entries = msgspec.json.decode(text, type=list[WrittenCall])
    if not entries:
        raise ValueError("not a list of calls")
    return [_call(entry) for entry in entries]


def _call(written: WrittenCall, needs_arguments: bool = False) -> ToolCall:
    given = written.parameters if written.arguments is UNSET else written.arguments
    # Read no further: a number may be larger than any that could be written again.
    arguments = (
        "" if given is UNSET and needs_arguments else "{}" if given is UNSET else bytes(given).decode()
    )
    if not written.name or not arguments.startswith("{"):
        raise ValueError("not a call")
    return ToolCall(written.name, arguments)


IN_HERMES = CallLayout('<tool_call>\n{"name": $quoted, "arguments": $arguments}\n</tool_call>', between="\n")
HERMES = ToolFormat("Hermes", "<tool_call>", "</tool_call>", read_hermes, IN_HERMES)
IN_LLAMA3 = CallLayout('{"name": $quoted, "parameters": $arguments}', between="; ")
LLAMA3 = ToolFormat("Llama 3", "", "", read_llama3, IN_LLAMA3, openings="{")
IN_LIST = CallLayout('{"name": $quoted, "arguments": $arguments}', "[", ", ", "]")
IN_MISTRAL = replace(IN_LIST, before="[TOOL_CALLS] [")
MISTRAL = ToolFormat("Mistral", "[TOOL_CALLS]", "", read_mistral, IN_MISTRAL, id_length=9)
MISTRAL_ARGS = replace(MISTRAL, layout=CallLayout("[TOOL_CALLS]$name[ARGS]$arguments"))
"""Mistral's later versions."""
FORCED = ToolFormat("JSON", "", "", read_list, IN_LIST, openings="[")
"""The format of an answer that a JSON schema confines to calls."""


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template asks for; None: it takes no tools, or the format is not known."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    # Qwen3-Coder has the same marks around a format of its own.
    if "<tool_call>" in template and "arguments" in template and "<function=" not in template:
        return HERMES
    if "<|python_tag|>" in template or '"parameters": dictionary of argument name' in template:
        return LLAMA3
    return None
