"""States of a packed forward: the spans of tokens that recurrent layers compute, and the states between them.

A *span* is a run of tokens of one query or one item. It begins with the state that another span left, or with a
state of the pool, and leaves one that others begin with: a query's state is computed once, and each of its items
begins with it. Nothing is added to it by an item, so no item sees another.
"""

from typing import NamedTuple

from hiscore.arrays import Int64

CHUNK = 64
"""Tokens that a layer computes at once, counted from the beginning of a query or an item. States are kept between
chunks only: what goes on from there has the rounding of what was never interrupted."""
ZERO_SLOT, QUERY_SLOT, ITEM_SLOT, OTHER_QUERY_SLOT, OTHER_ITEM_SLOT = range(5)
"""Slots of the pool: the state before any token; those of a query and an item that the next forward takes up; and
second places for these, where kernels still read the first ones."""
FIRST_CACHED_SLOT = 5
PADDING_SLOT, FIRST_SEQUENCE_SLOT = QUERY_SLOT, FIRST_CACHED_SLOT
"""Slots in a pool for decoding: what padding of a step reads and writes, and the first of a sequence."""
MOST_QUERIES = 64
"""Queries of a forward, as batches are formed: for each a layer holds up to `STATES_OF_QUERY` states at once."""
STATES_OF_QUERY = 4
"""One that it begins with, one behind the beginning that it shares with others, one at its last chunk's end, and
one at its own."""


class SpanBatch(NamedTuple):
    """Spans computed together: none of them begins with a state that another one leaves.

    Attributes:
        rows: int64 [T]: the rows of the forward that the spans hold, span after span.
        cu_seqlens: int64 [S + 1]: span s has entries cu_seqlens[s] to cu_seqlens[s + 1] of `rows`, at least one.
        starts: int64 [S]: the states that spans begin with.
        ends: int64 [S], the states that they leave, or empty: nobody needs them.
    """

    rows: Int64
    cu_seqlens: Int64
    starts: Int64
    ends: Int64


class StatePlan(NamedTuple):
    """States of one forward, which are numbered: first those from the pool, then those that it computes.

    Attributes:
        batches: Spans of all rows, in the order in which they can be computed.
        loaded: int64 [L]: the pool slots of states 0 to L - 1.
        states: Number of all states.
        stored: int64 [K]: states that go to the pool.
        stored_slots: int64 [K]: where they go, once everything is loaded.
    """

    batches: tuple[SpanBatch, ...]
    loaded: Int64
    states: int
    stored: Int64
    stored_slots: Int64
