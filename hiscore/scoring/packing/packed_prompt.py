"""A prompt's place in the batch that is being packed, and the pool's slots of its tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Int64
from hiscore.attention.metadata import NO_SLOT, SegmentGroup
from hiscore.recurrence.metadata import ZERO_SLOT
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt


@dataclass(frozen=True, eq=False)
class Allocation:
    """Pages that a prompt keeps until all tokens before `read_until` in the batch's sequence are computed."""

    pages: list[int]
    read_until: int


class QueryStates(NamedTuple):
    """Slots of a query's states in the pool: the one behind its cached tokens, and those to keep, by place."""

    first: int
    kept: Mapping[int, int]


NO_STATES = QueryStates(ZERO_SLOT, {})


class PackedPrompt:
    """A prompt and its place in the batch's sequence. Its tokens count from the query's first, cached or not."""

    def __init__(
        self,
        prompt: MultiItemPrompt,
        begin: int,
        slots: Int64,
        cached: int,
        items: Int64,
        places: Int64,
        states: QueryStates = NO_STATES,
    ) -> None:
        """Place a prompt whose first new token has index `begin` in the batch's sequence.

        Args:
            slots: Pool slots of its first tokens.
            cached: Its first tokens that are not computed.
            items: int64 [items]: the index of each among all that the batch reads.
            places: int64 [places]: likewise.
            states: States of its query, if layers are recurrent.
        """
        self.prompt, self.states = prompt, states
        self.query = prompt.query_length
        self.cached = cached
        self.begin = begin - cached  # index that token 0 has, or would have, in the batch's sequence
        self.end = self.begin + len(prompt.tokens)
        self.items, self.places = items, places
        self.slots = np.empty(len(prompt.tokens), np.int64)
        self.slots[: len(slots)], self.slots[len(slots) :] = slots, NO_SLOT

    def offset_in_node(self, index: int) -> int:
        token = index - self.begin
        return token - self.node(token)[0]

    def groups(self, begin: int, end: int) -> Iterator[SegmentGroup]:
        """The groups of a forward that begins and ends at these indices of the batch's sequence."""
        first, last = max(begin - self.begin, self.cached), min(end, self.end) - self.begin
        shift = self.begin - begin  # from token to row
        none = slice(0, 0)
        items = max(first, self.query)
        if first < self.query:
            yield SegmentGroup(first + shift, min(last, self.query) + shift, self.slots[:first], none)
        elif first > self.query and (item := self.node(first))[0] < first:
            # The rest of an item that began in the forward before: it sees that part of itself as well.
            items = min(last, item[1])
            own = self.slots[item[0] : first]
            yield SegmentGroup(first + shift, items + shift, self.slots[: self.query], none, own)
        if items < last:
            in_pool = min(first, self.query)
            new = slice(in_pool + shift, self.query + shift) if first < self.query else none
            yield SegmentGroup(items + shift, last + shift, self.slots[:in_pool], new)

    def keep_across(self, boundary: int, cache: QueryCache) -> Iterator[Allocation]:
        """Allocate slots for the tokens before a forward's end that tokens after it still see.

        Raises:
            PoolExhausted: There is no room for all of them; what was yielded is to be freed.
        """
        done = boundary - self.begin
        spans = [(0, min(done, self.query), self.end)]
        if done > self.query:
            first, last = self.node(done)
            spans.append((first, done, self.begin + last))
        for first, last, read_until in spans:
            missing = first + np.flatnonzero(self.slots[first:last] == NO_SLOT)
            pages = cache.allocate(-(-len(missing) // PAGE))
            self.slots[missing] = cache.slots_of(pages)[: len(missing)]
            yield Allocation(pages, read_until)

    def node(self, token: int) -> tuple[int, int]:
        if token < self.query:
            return 0, self.query
        ends = self.prompt.item_ends
        item = int(np.searchsorted(ends, token, side="right"))
        return int(ends[item - 1]), int(ends[item])
