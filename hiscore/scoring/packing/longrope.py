"""Longrope: the rotary table that a prompt needs, and calls whose items need both.

Transformers rotates a sequence longer than the original context by other frequencies, from its first token on. So
the query's keys behind a long item are not those behind a short one. An item gets the score that it gets alone, so
the long items of a call are packed as a prompt of their own, whose query is computed and cached apart.
"""

from dataclasses import dataclass, replace

import numpy as np

from hiscore.arrays import Bool, Int64
from hiscore.errors import RequestError
from hiscore.scoring.requests.request import MultiItemPrompt


@dataclass(frozen=True)
class LongropeTables:
    """The rotary tables of longrope: one for `original_context` tokens, another from the row `second` on."""

    original_context: int
    second: int

    def of(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        """Mark a prompt as long if every item of it is; raise RequestError if only its labels are."""
        is_long = self._are_long(prompt)
        if prompt.tries is not None:
            behind = np.array([trie.longest for trie in prompt.tries], np.int64)
            if (crosses := ~is_long & self._are_long(prompt, behind)).any():
                raise RequestError(
                    f"item {int(crosses.argmax())} and its labels reach beyond {self.original_context} tokens, "
                    "where this model's positions change: labels of several tokens must end before, or begin there"
                )
        if prompt.is_long or not len(is_long) or not is_long.all():
            return prompt
        return replace(prompt, is_long=True)

    def apart(self, prompt: MultiItemPrompt) -> list[tuple[MultiItemPrompt, Int64]]:
        """Part short items from long ones; each prompt comes with the indices of its items, int64 [items]."""
        is_long = self._are_long(prompt)
        if bool((is_long == is_long[0]).all()):
            return [(self.of(prompt), np.arange(len(is_long)))]
        return [
            (prompt.chosen(~is_long), np.flatnonzero(~is_long)),
            (replace(prompt.chosen(is_long), is_long=True), np.flatnonzero(is_long)),
        ]

    def _are_long(self, prompt: MultiItemPrompt, behind: Int64 | int = 0) -> Bool:
        """bool [items], with so many tokens behind each."""
        found: Bool = prompt.query_length + prompt.item_lengths + behind > self.original_context
        return found
