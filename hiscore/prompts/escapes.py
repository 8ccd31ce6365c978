"""Texts of callers on their way through a template: escaped, so that none becomes part of a protected token."""

import re
from collections.abc import Mapping
from typing import Any

# Begins an escape. A noncharacter: hardly ever in a text, and escaped itself where it is.
ESCAPE = "\ufdd0"
CODES = 0xE000
GAP = f"{ESCAPE}\uf8ff"
"""Stands for a text that is put into a rendered template later. No escaped text holds it."""
# Of tools, messages and JSON schemas: templates ask for them by name.
KNOWN_KEYS = frozenset(
    [
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "arguments",
        "properties",
        "required",
        "items",
        "enum",
        "default",
        "format",
        "anyOf",
        "allOf",
        "oneOf",
        "additionalProperties",
        "strict",
        "id",
        "content",
        "role",
        "tool_calls",
        "minimum",
        "maximum",
        "title",
    ]
)


class Escapes:
    """Escapes texts, and reveals them in what a template has made of them.

    `names` maps the protected tokens to the secret ones under which the tokenizer knows them.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        self._protected = re.compile("|".join(longest_first) or "(?!)")
        first = sorted({ESCAPE, *(content[0] for content in names)})
        codes = {char: f"{ESCAPE}{chr(CODES + index)}" for index, char in enumerate(first)}
        self._table = str.maketrans(codes)
        self._break = f"{ESCAPE}{chr(CODES + len(first))}"
        self._revealed = {code: char for char, code in codes.items()} | {self._break: ""}
        self._codes = re.compile(f"{ESCAPE}.", re.DOTALL)
        self._ends: dict[int, set[str]] = {}
        self._middles: set[str] = set()
        for content in names:
            cuts = [at for at in range(1, len(content)) if _between_words(content, at)]
            for index, start in enumerate(cuts):
                self._ends.setdefault(len(content) - start, set()).add(content[start:])
                self._middles.update(content[start:end] for end in cuts[index + 1 :])

    def escape(self, text: str) -> str:
        """Escape a text: no protected token then begins in it, or goes on from the template's ``<`` before it."""
        body = text.lstrip()  # a template may strip it, too
        if not self._goes_on(body):
            return text.translate(self._table)
        space = text[: len(text) - len(body)]
        return space.translate(self._table) + self._break + body.translate(self._table)

    def escape_all(self, value: Any) -> Any:
        """JSON with every text in it escaped, but for the keys that templates look up."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, list):
            return [self.escape_all(each) for each in value]
        if isinstance(value, dict):
            return {
                name if name in KNOWN_KEYS else self.escape(name): self.escape_all(each)
                for name, each in value.items()
            }
        return value

    def reveal(self, prompt: str) -> str:
        """Put a rendered template's own tokens under their secret names, and the texts back as they were."""
        named = self._protected.sub(lambda match: self._names[match[0]], prompt)
        # A template may have cut a text in the middle of an escape.
        return self._codes.sub(lambda match: self._revealed.get(match[0], match[0][1:]), named)

    def protected_at_start(self, text: str) -> str | None:
        """The protected token with which a template's text begins, or None."""
        found = self._protected.match(text)
        return found[0] if found else None

    def _goes_on(self, text: str) -> bool:
        """Check whether a text could continue a protected token whose beginning came before it."""
        return text in self._middles or any(text[:length] in ends for length, ends in self._ends.items())


def _between_words(text: str, at: int) -> bool:
    # No template begins or ends a token in the middle of a word.
    return not (text[at - 1].isalnum() and text[at].isalnum())
