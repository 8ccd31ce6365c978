"""The parts of a model's answer, and the search for marks in text that comes piece by piece."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model wrote for itself."""

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
