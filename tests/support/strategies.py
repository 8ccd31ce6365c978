"""Random prompts for hypothesis: shapes first, ids from a seed, so that failures shrink to small shapes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hiscore.scoring.requests.request import MultiItemPrompt


@dataclass(frozen=True)
class Tokens:
    """A prompt as lists of ids."""

    query: list[int]
    items: list[list[int]]

    def prompt(self) -> MultiItemPrompt:
        return MultiItemPrompt.of(self.query, self.items)


def random_tokens(rng: np.random.Generator, query: int, items: list[int], vocabulary: int) -> Tokens:
    return Tokens(
        rng.integers(0, vocabulary, query).tolist(),
        [rng.integers(0, vocabulary, length).tolist() for length in items],
    )


@st.composite
def tokens(draw: st.DrawFn, vocabulary: int, longest: int = 24, most: int = 8) -> Tokens:
    """A prompt in which no item is empty together with the query."""
    query = draw(st.integers(0, longest))
    items = draw(st.lists(st.integers(0 if query else 1, longest), max_size=most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_tokens(rng, query, items, vocabulary)
