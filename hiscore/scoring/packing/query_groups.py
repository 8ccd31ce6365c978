"""Prompts of a batch with the same query, packed as one: it is computed once, and read for all items together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int64, joined
from hiscore.scoring.packing.branches import branched
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt


class QueryGroup(NamedTuple):
    """Prompts of a batch (`members`) with the same query, which `prompt` joins.

    `items`, int64 [items], and `places`, int64 [places], hold the index of each among all that a batch reads: of
    each prompt first the ends of its items, then its places, or in turn the rows of its tries.
    """

    prompt: MultiItemPrompt
    members: list[int]
    items: Int64
    places: Int64

    @property
    def max_hit(self) -> int:
        """The query's tokens that need not be computed; those that are read are not among them."""
        return max(0, self.prompt.query_length - self.prompt.query_reads)

    def hit_pages(self, cache: QueryCache) -> int:
        return cache.hit(self.prompt.query_key, self.max_hit) // PAGE if cache.caching else 0


def grouped_by_query(
    prompts: Sequence[MultiItemPrompt], together: bool, longrope: LongropeTables | None = None
) -> list[QueryGroup]:
    """Group prompts with items by query, or each by itself; with longrope, long items are prompts of their own."""
    pieces: list[tuple[int, MultiItemPrompt, Int64, Int64]] = []
    first = 0
    for i, prompt in enumerate(prompts):
        if not len(prompt.item_lengths):
            continue
        for part, of_part in prompt.by_query():
            for made, items, places in branched(part):
                if of_part is not None:
                    numbers = prompt.rows_of(of_part)
                    items, places = numbers[items], numbers[places]
                items, places = first + items, first + places
                if longrope is None:
                    pieces.append((i, made, items, places))
                    continue
                for piece, chosen in longrope.apart(made):
                    owners = made.item_ends[1:].searchsorted(made.places + made.query_length, "right")
                    pieces.append((i, piece, items[chosen], places[np.isin(owners, chosen)]))
        first += prompt.rows_read
    groups: dict[bytes | int, list[tuple[int, MultiItemPrompt, Int64, Int64]]] = {}
    for place, found in enumerate(pieces):
        key = found[1].query_key.whole if together and len(pieces) > 1 else place
        groups.setdefault(key, []).append(found)
    return [
        QueryGroup(
            members[0][1].with_items_of([prompt for _, prompt, *_ in members[1:]]),
            [i for i, *_ in members],
            joined([items for _, _, items, _ in members]),
            joined([places for *_, places in members]),
        )
        for members in groups.values()
    ]
