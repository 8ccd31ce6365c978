"""Prompts of one batch that have the same query: packed as one, their items see one context.

So the query is computed once, cached or not, and attention reads its keys for all items together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int64
from hiscore.scoring.prefix_cache import PAGE, PrefixCache
from hiscore.scoring.request import MultiItemPrompt


@dataclass(frozen=True)
class QueryGroup:
    """Prompts of a batch that have the same query.

    Attributes:
        prompt: The query with the items of all.
        members: Indices of the prompts.
        items: int64 [items]: the index of each among all items of the batch.
    """

    prompt: MultiItemPrompt
    members: list[int]
    items: Int64

    @property
    def max_hit(self) -> int:
        """How many of the query's tokens need not be computed; an empty item is read at the last one."""
        return max(0, self.prompt.query_length - self.prompt.has_empty_item)

    def hit_pages(self, cache: PrefixCache) -> int:
        """How many of the query's pages the cache holds and need not be computed."""
        return min(cache.leading_pages(self.prompt.query_key), self.max_hit // PAGE) if cache.caching else 0


def grouped_by_query(prompts: Sequence[MultiItemPrompt], together: bool) -> list[QueryGroup]:
    """Prompts with items: those of one query together, or each by itself."""
    indices = [i for i, prompt in enumerate(prompts) if len(prompt.item_lengths)]
    groups: dict[bytes | int, list[int]] = {}
    for i in indices:
        groups.setdefault(prompts[i].query_key.whole if together and len(indices) > 1 else i, []).append(i)
    ends = np.cumsum([len(prompt.item_lengths) for prompt in prompts])
    return [
        QueryGroup(
            prompts[members[0]].with_items_of([prompts[i] for i in members[1:]]),
            members,
            np.concatenate([np.arange(ends[i] - len(prompts[i].item_lengths), ends[i]) for i in members]),
        )
        for members in groups.values()
    ]
