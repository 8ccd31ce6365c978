"""The calls of tools in a model's answer, in the formats that families of checkpoints are trained on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hiscore.prompts.answer_parts import Content, Part, ToolCall, split_at

DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ToolFormat:
    """The way in which a family writes calls.

    Attributes:
        begin: The mark before calls; empty: an answer that begins with one of `openings` is calls.
        end: The mark behind them; empty: the end of the answer.
        read: The calls of the text between the marks; raises ValueError if they are none.
        special: The mark is a special token, which has no text by default.
        id_length: Characters of a call's id, for templates that demand so many; 0: any.
    """

    name: str
    begin: str
    end: str
    read: Callable[[str], list[ToolCall]]
    openings: str = ""
    special: bool = False
    id_length: int = 0


class ToolCallReader:
    """Finds the calls in one answer. What only looks like one is passed on as text."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._inside = self._undecided = not tool_format.begin
        self._held = ""
        self._any = False

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
                return [*parts, Content(text)]
            before, text, self._inside = split_at(text, self._format.begin)
            # Between calls there is white space alone.
            if before and not (self._any and not before.strip()):
                parts.append(Content(before))
            if not self._inside:
                self._held = text
                break
        return parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._inside and not self._undecided:
            return self._calls(held)
        return [Content(held)] if held else []

    def _calls(self, text: str, end: str = "") -> list[Part]:
        try:
            calls = self._format.read(text)
        except (ValueError, RecursionError):
            return [Content(f"{self._format.begin}{text}{end}")]
        self._any = True
        return list(calls)


def read_hermes(text: str) -> list[ToolCall]:
    """``{"name": .., "arguments": {..}}``, as Hermes and Qwen write it."""
    return [_call(json.loads(text))]


def read_llama3(text: str) -> list[ToolCall]:
    """``{"name": .., "parameters": {..}}``, several of them separated by semicolons."""
    calls, at = [], 0
    text = text.strip()
    while at < len(text):
        value, end = DECODER.raw_decode(text, at)
        calls.append(_call(value))
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
        calls.append(_call({"name": name, "arguments": json.loads(arguments)}))
    return calls


def read_list(text: str) -> list[ToolCall]:
    """A list of ``{"name": .., "arguments": {..}}``."""
    entries = json.loads(text)
    if not isinstance(entries, list) or not entries:
        raise ValueError("not a list of calls")
    return [_call(entry) for entry in entries]


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        raise ValueError("not a call")
    # Models mix up the names of the two families.
    given: Any = next((value[key] for key in ("arguments", "parameters") if key in value), {})
    if not isinstance(given, dict):
        raise ValueError("arguments are no object")
    arguments = json.dumps(given, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair, escaped, is read but cannot be sent: UnicodeEncodeError is a ValueError.
    (name + arguments).encode()
    return ToolCall(name, arguments)


HERMES = ToolFormat("Hermes", "<tool_call>", "</tool_call>", read_hermes)
LLAMA3 = ToolFormat("Llama 3", "", "", read_llama3, openings="{")
MISTRAL = ToolFormat("Mistral", "[TOOL_CALLS]", "", read_mistral, special=True, id_length=9)
FORCED = ToolFormat("JSON", "", "", read_list, openings="[")
"""The format of an answer that a JSON schema confines to calls."""


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template asks for; None: it takes no tools, or the format is not known."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    # Qwen3-Coder has the same marks around a format of its own.
    if "<tool_call>" in template and "arguments" in template and "<function=" not in template:
        return HERMES
    if "<|python_tag|>" in template or '"parameters": dictionary of argument name' in template:
        return LLAMA3
    return None
