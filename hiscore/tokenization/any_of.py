"""An expression that finds the longest of many words, in one look at each character."""

import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

# Expressions within expressions are read recursively.
MOST_LEVELS = 50


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """An expression that matches the longest of the words that stand at a place.

    Words are told apart letter by letter: of a thousand that begin alike, all would be tried at each place.

    Args:
        words: None of them empty; if there is none, nothing matches.
    """
    return re.compile(_alternatives(sorted(set(words)), MOST_LEVELS) or "(?!)")


def _alternatives(words: list[str], levels: int) -> str:
    """Of words in order; none of them empty."""
    if not levels:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches = []
    for _, alike in groupby(words, key=itemgetter(0)):
        group = list(alike)
        first, last = group[0], group[-1]
        # In order, so what these two share all do.
        shared = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        rests = [word[shared:] for word in group if len(word) > shared]
        branch = re.escape(first[:shared])
        if rests:
            branch += f"(?:{_alternatives(rests, levels - 1)})" + ("?" if len(first) == shared else "")
        branches.append(branch)
    return "|".join(branches)
