"""Prompts of a batch with the same query, packed as one: it is computed once, and read for all items together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int64, joined
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt


class QueryGroup(NamedTuple):
    """Prompts of a batch (`members`) with the same query, which `prompt` joins.

    `items`, int64 [items], holds the index of each item among all items of the batch.
    """

    prompt: MultiItemPrompt
    members: list[int]
    items: Int64

    @property
    def max_hit(self) -> int:
        """The query's tokens that need not be computed; an empty item is read at the last one."""
        return max(0, self.prompt.query_length - (self.prompt.empty_items > 0))

    def hit_pages(self, cache: QueryCache) -> int:
        """Count the query's cached pages that need not be computed."""
        return cache.hit(self.prompt.query_key, self.max_hit) // PAGE if cache.caching else 0


def grouped_by_query(
    prompts: Sequence[MultiItemPrompt], together: bool, longrope: LongropeTables | None = None
) -> list[QueryGroup]:
    """Group prompts with items by query, or each by itself; with longrope, long items are prompts of their own."""
    pieces: list[tuple[int, MultiItemPrompt, Int64]] = []
    first = 0
    for i, prompt in enumerate(prompts):
        if items := len(prompt.item_lengths):
            if longrope is None:
                pieces.append((i, prompt, np.arange(first, first + items)))
            else:
                pieces += ((i, piece, first + chosen) for piece, chosen in longrope.apart(prompt))
            first += items
    groups: dict[bytes | int, list[tuple[int, MultiItemPrompt, Int64]]] = {}
    for place, piece in enumerate(pieces):
        key = piece[1].query_key.whole if together and len(pieces) > 1 else place
        groups.setdefault(key, []).append(piece)
    return [
        QueryGroup(
            members[0][1].with_items_of([prompt for _, prompt, _ in members[1:]]),
            [i for i, _, _ in members],
            joined([items for _, _, items in members]),
        )
        for members in groups.values()
    ]
