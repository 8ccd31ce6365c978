"""Telling a model's reasoning, between ``<think>`` and ``</think>``, from its answer, as both are streamed."""

from hiscore.prompts.answer_parts import Content, Part, Reasoning, split_at

BEGIN, END = "<think>", "</think>"


class ReasoningReader:
    """Splits one answer, whose reasoning the prompt may have `begun`; white space between is dropped."""

    def __init__(self, begun: bool) -> None:
        self._state = "reasoning" if begun else "start"
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
