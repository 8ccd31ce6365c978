"""A prompt's place in the batch that is being packed, and the pool's slots of its tokens."""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int64
from hiscore.attention.metadata import NO_SLOT
from hiscore.scoring.prefix_cache import PAGE, PrefixCache, slots_of
from hiscore.scoring.request import MultiItemPrompt


@dataclass(frozen=True, eq=False)
class Allocation:
    """Pages that a prompt keeps until all tokens before `read_until` in the batch's sequence are computed."""

    pages: list[int]
    read_until: int


class PackedPrompt:
    """A prompt and its place in the batch's sequence. Its tokens count from the query's first, cached or not."""

    def __init__(self, prompt: MultiItemPrompt, begin: int, slots: Int64, cached: int, items: Int64) -> None:
        """Place a prompt.

        Args:
            prompt: Query and items.
            begin: Index of its first new token in the batch's sequence.
            slots: Pool slots of its first tokens.
            cached: Its first tokens that are not computed.
            items: int64 [items]: the index of each among all items of the batch.
        """
        self.query = prompt.query_length
        self.tokens = prompt.tokens
        self.cached = cached
        self.begin = begin - cached  # index that token 0 has, or would have, in the batch's sequence
        self.end = self.begin + len(prompt.tokens)
        self.items = items
        # Of node i, where node 0 is the query and the others are items: tokens bounds[i] to bounds[i + 1].
        self.bounds = np.concatenate(([0], self.query + np.cumsum(np.append(0, prompt.item_lengths))))
        # The last token of each item, or of the query for an empty item.
        self.read_at = np.where(prompt.item_lengths > 0, self.bounds[2:], self.query) - 1
        self.slots = np.full(len(prompt.tokens), NO_SLOT, np.int64)
        self.slots[: len(slots)] = slots

    def offset_in_node(self, index: int) -> int:
        """How far into the query, or into an item, this index of the batch's sequence is."""
        token = index - self.begin
        return token - int(self.bounds[np.searchsorted(self.bounds, token, side="right") - 1])

    def keep_across(self, boundary: int, cache: PrefixCache) -> list[Allocation]:
        """Allocate slots for the tokens before a forward's end that tokens after it still see."""
        done = boundary - self.begin
        spans = [(0, min(done, self.query), self.end)]
        if done > self.query:
            node = int(np.searchsorted(self.bounds, done, side="right")) - 1
            spans.append((int(self.bounds[node]), done, self.begin + int(self.bounds[node + 1])))
        allocations = []
        for first, last, read_until in spans:
            missing = first + np.flatnonzero(self.slots[first:last] == NO_SLOT)
            pages = cache.allocate(-(-len(missing) // PAGE))
            allocations.append(Allocation(pages, read_until))
            self.slots[missing] = slots_of(pages)[: len(missing)]
        return allocations
