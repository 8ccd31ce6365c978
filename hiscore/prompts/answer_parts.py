"""The parts of a model's answer as it is streamed: reasoning (``<think>`` to ``</think>``), text, and calls."""

from dataclasses import dataclass
from typing import TypeAlias

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True)
class Content:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to be called; `arguments` is a JSON object."""

    name: str
    arguments: str


Part: TypeAlias = Content | Reasoning | ToolCall


def split_at(text: str, mark: str) -> tuple[str, str, bool]:
    """Return the text before and behind the first mark, and True.

    Without a mark, the second text is the end that may be the beginning of one, and the last value False.
    """
    before, found, after = text.partition(mark)
    if found:
        return before, after, True
    held = next(
        (length for length in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:length])), 0
    )
    return text[: len(text) - held], text[len(text) - held :], False


class ReasoningReader:
    """Tells the reasoning of one answer from the rest; white space between is dropped.

    The prompt may have `begun` the reasoning; None: it is not told apart.
    """

    def __init__(self, begun: bool | None) -> None:
        self._state = {True: "reasoning", False: "start", None: "plain"}[begun]
        self._held = ""  # what may be the beginning of a mark
        self._space = ""  # what is dropped if nothing follows
        self._first = True  # nothing of the present state has been passed on

    def push(self, text: str) -> list[Part]:
        text, self._held = self._held + text, ""
        parts: list[Part] = []
        if self._state == "start":
            begun = text.lstrip()
            if BEGIN.startswith(begun) and begun != BEGIN:
                self._held = text
                return []
            self._state = "reasoning" if begun.startswith(BEGIN) else "plain"
            if self._state == "reasoning":
                text = begun.removeprefix(BEGIN)
        if self._state == "reasoning":
            before, after, ended = split_at(text, END)
            parts += self._reasoning(before)
            if not ended:
                self._held = after
                return parts
            self._state, self._first, text = "answer", True, after
        if self._state == "answer" and self._first:
            text = text.lstrip()
            self._first = not text
        return [*parts, Content(text)] if text else parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if not held:
            return []
        return self._reasoning(held) if self._state == "reasoning" else [Content(held)]

    def _reasoning(self, text: str) -> list[Part]:
        text = self._space + text
        if self._first:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._first = self._first and not kept
        return [Reasoning(kept)] if kept else []
