"""A checkpoint's chat template with the roles query and document, filled in as sentence-transformers does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hiscore.models.cross_encoder import CrossEncoderFiles
from hiscore.prompts.chat import ChatTemplate, PromptError, as_parts, read_chat_template, special_tokens
from hiscore.prompts.tracked_text import TrackedText, own

PARTS = ("content[0]", ".type", "'type'", '"type"', "message.content[")
"""A template that writes one of these takes messages of parts."""


@dataclass(frozen=True)
class RoleTemplate:
    chat: ChatTemplate
    structured: bool
    variables: Mapping[str, Any]

    def text(self, query: str, document: str, instruction: str) -> TrackedText:
        """Render a prompt; an instruction is the system's message. Raises `PromptError` if the template fails."""
        messages = [("system", instruction)] if instruction else []
        messages += [("query", query), ("document", document)]
        return self.chat.render_as_is(
            [{"role": role, "content": self._content(text)} for role, text in messages],
            **{"add_generation_prompt": False, **self.variables},
        )

    def _content(self, text: str) -> Any:
        return as_parts(text) if self.structured else text

    def carries_pairs(self, instruction: str = "") -> bool:
        try:
            base, *others = (self.text(*pair, instruction) for pair in (("a", "b"), ("cc", "b"), ("a", "dd")))
        except PromptError:
            return False
        return base not in others

    @property
    def named(self) -> bool:
        """True if the template names both roles; that of any chat may pass on what it does not know."""
        return all(re.search(f"[\"']{role}[\"']", self.chat.source) for role in ("query", "document"))

    @cached_property
    def takes_instruction(self) -> bool:
        return self.text("a", "b", "c") != self.text("a", "b", "")


@dataclass(frozen=True)
class GuardTemplate(RoleTemplate):
    """The template of a guard, which judges a document as the answer to the query, or alone as a user's message.

    Attributes:
        instructed: Its variable for the instruction, and behind a dot the key in that; empty: it has none.
        answer: The beginning of every answer, up to the label.
    """

    instructed: str = ""
    answer: str = ""

    @cached_property
    def takes_instruction(self) -> bool:
        """True if it has a variable for one; some templates fail on words that are not among their own."""
        return bool(self.instructed)

    def text(self, query: str, document: str, instruction: str) -> TrackedText:
        """Render a prompt, or raise `PromptError`: the template fails."""
        turns = [("user", query), ("assistant", document)] if query else [("user", document)]
        name, _, key = self.instructed.partition(".")
        given = {name: {key: instruction} if key else instruction} if name and instruction else {}
        prompt = self.chat.render_as_is(
            [{"role": role, "content": self._content(text)} for role, text in turns], **given
        )
        return prompt if prompt.ends_with_own(self.answer) else prompt + own(self.answer)


def read_roles(checkpoint: Path, files: CrossEncoderFiles) -> RoleTemplate | None:
    """Read the template that files name, or the default one; None if it carries no query and document."""
    variables = dict(files.variables)
    named = str(variables.pop("chat_template", "default"))
    chat = read_chat_template(checkpoint, named)
    if chat is None and "{" in named:
        chat = ChatTemplate(named, special_tokens(checkpoint))
    if chat is None:
        return None
    structured = files.structured
    if structured is None:
        structured = any(part in chat.source for part in PARTS)
    roles = RoleTemplate(chat, structured, variables)
    return roles if roles.carries_pairs() else None
