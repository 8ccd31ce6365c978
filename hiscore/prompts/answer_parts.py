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
    """A function that the model wants to be called.

    Attributes:
        arguments: A JSON object.
    """

    name: str
    arguments: str


Part: TypeAlias = Content | Reasoning | ToolCall


def split_at(text: str, mark: str) -> tuple[str, str, bool]:
    """Look for the first mark in a text that may go on.

    Returns:
        What comes before it, what comes after it, and whether there is one. If there is none, the second part is
        the end of the text that may be the beginning of one.
    """
    before, found, after = text.partition(mark)
    if found:
        return before, after, True
    held = next(
        (length for length in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:length])), 0
    )
    return text[: len(text) - held], text[len(text) - held :], False
