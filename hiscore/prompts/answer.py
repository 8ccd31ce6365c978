"""A model's answer as it is streamed: content, reasoning and calls of tools told apart."""

from hiscore.prompts.answer_parts import Content, Part
from hiscore.prompts.reasoning import ReasoningReader
from hiscore.prompts.tool_calls import ToolCallReader, ToolFormat


class AnswerReader:
    """Reads one answer.

    Args:
        reasoning: True if the prompt has begun the reasoning; None: reasoning is not told apart.
        tools: The format of calls; None: there are none.
    """

    def __init__(self, reasoning: bool | None, tools: ToolFormat | None) -> None:
        self._reasoning = None if reasoning is None else ReasoningReader(reasoning)
        self._tools = None if tools is None else ToolCallReader(tools)

    def push(self, text: str) -> list[Part]:
        return self._read(self._reasoning.push(text) if self._reasoning else [Content(text)] if text else [])

    def finish(self) -> list[Part]:
        """Return the parts that were held back, at the end of the answer."""
        parts = self._read(self._reasoning.finish()) if self._reasoning else []
        return [*parts, *(self._tools.finish() if self._tools else [])]

    def _read(self, parts: list[Part]) -> list[Part]:
        if self._tools is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._tools.push(part.text) if isinstance(part, Content) else [part]
        return read
