"""The form in which a chat template reads calls of tools and their results: families differ, callers do not."""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product, starmap
from typing import Any, NamedTuple, TypeAlias

from hiscore.prompts.chat import ChatTemplate, PromptError

Message: TypeAlias = Mapping[str, Any]
"""A message as OpenAI's chat has it, its content as text and the arguments of its calls as objects."""
# A history of two calls, with ids as Mistral's templates want them.
NAMES = "first_call", "second_call"
CALLS: list[Message] = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": name[:9], "function": {"name": name, "arguments": {"a": f"{name} of"}}}
            for name in NAMES
        ],
    },
    *({"role": "tool", "content": f"{name} gave", "tool_call_id": name[:9]} for name in NAMES),
]


class CallForm(NamedTuple):
    """A form of messages with calls.

    Attributes:
        one_each: A message has one call at most.
        as_text: Arguments are JSON, not an object.
        no_text: The content beside calls, where there is no text.
    """

    one_each: bool
    as_text: bool
    no_text: str | None

    def apply(self, messages: Sequence[Message]) -> Sequence[Message]:
        return [self._written(each) for each in (one_call_each(messages) if self.one_each else messages)]

    def _written(self, message: Message) -> Message:
        if not message.get("tool_calls"):
            return message
        calls = message["tool_calls"]
        if self.as_text:
            texts = [json.dumps(call["function"]["arguments"], ensure_ascii=False) for call in calls]
            calls = [
                {**call, "function": {**call["function"], "arguments": text}}
                for call, text in zip(calls, texts, strict=True)
            ]
        return {**message, "tool_calls": calls, "content": message["content"] or self.no_text}


def find_call_form(template: ChatTemplate) -> CallForm:
    """Find the form of which a template writes everything; if there is none, messages stay as they are."""
    written = [f"{name} {part}" for name in NAMES for part in ("of", "gave")]
    for form in starmap(CallForm, product((False, True), (False, True), ("", None))):
        with suppress(PromptError):
            text = template.render_as_is(form.apply(CALLS))
            if all(each in text for each in written):
                return form
    return CallForm(False, False, "")


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Split messages of several calls: each call has a message, with its results behind it."""
    split: list[Message] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            split.append(message)
            continue
        results: dict[int, list[Message]] = {}
        named: dict[str | None, deque[int]] = {}
        for index, call in enumerate(calls):
            named.setdefault(call.get("id"), deque()).append(index)
        free = 0
        while rest and rest[0]["role"] == "tool":
            result = rest.popleft()
            # Without an id, or with one of several calls, results are in the order of calls.
            if same := named.get(result.get("tool_call_id")):
                at = same.popleft() if len(same) > 1 else same[0]
            else:
                while free in results and free < len(calls) - 1:
                    free += 1
                at = free
            results.setdefault(at, []).append(result)
        for index, call in enumerate(calls):
            first = message if not index else {"role": message["role"], "content": ""}
            split += [{**first, "tool_calls": [call]}, *results.get(index, [])]
    return split
