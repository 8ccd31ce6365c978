"""The rule by which a tokenizer's texts can be split: `safe_splits` and `mark_splits` prove it."""

import json
import re
from dataclasses import dataclass
from typing import Any

WINDOW = 2**15
"""Characters that are searched at once: no other thread runs meanwhile."""


@dataclass(frozen=True)
class SplitRule:
    """Places at which a text's two parts, encoded separately, give the tokens of the whole.

    `point` matches the first character of the second part. With `adds_space` the tokenizer puts a space before
    every text: the second part begins with one, and is encoded without it.
    """

    point: re.Pattern[str]
    adds_space: bool = False

    def first(self, text: str) -> int | None:
        """Find the beginning of the second part at the first split point of a text, if there is one."""
        for start in range(0, len(text), WINDOW):
            end = start + WINDOW
            # The character behind the window is for the lookahead.
            match = self.point.search(text, start, end + 1)
            if match and match.start() < end:
                return match.start()
        return None

    def last(self, text: str) -> int | None:
        """Find the same at the last split point, reading only as much of the text's end as necessary."""
        end, window = len(text), 64
        while end > 0:
            start = max(0, end - window)
            # Unlike a slice, a start position lets the lookbehind see the character before it.
            indices = [match.start() for match in self.point.finditer(text, start, end + 1)]
            if indices := [index for index in indices if index < end]:
                return indices[-1]
            end, window = start, min(8 * window, WINDOW)
        return None

    def second(self, text: str) -> str:
        """Return the text to encode for a second part."""
        return text[1:] if self.adds_space else text


def state(component: Any) -> dict[str, Any]:
    """The JSON state of a pipeline component; empty for None."""
    values: dict[str, Any] = json.loads(component.__getstate__()) if component is not None else {}
    return values
