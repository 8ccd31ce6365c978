"""Tables from which kernels compute the recurrent layers of a forward; NumPy only.

*Chunks* are consecutive rows of a span, at most `CHUNK`. *Chains* are consecutive chunks through which one state
goes: a query, or an item. A chain begins with a state of the pool, or with one that another chain leaves.
"""

from collections.abc import Sequence

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.recurrence.metadata import (
    CHUNK,
    ITEM_SLOT,
    MOST_QUERIES,
    OTHER_ITEM_SLOT,
    OTHER_QUERY_SLOT,
    QUERY_SLOT,
    SpanBatch,
    StatePlan,
)

HEADER = 5
"""Counts of chunks, chains that begin with states of the pool, other chains, kept tails, and rows."""
ROWS_OF_CHUNK = 3
"""Fields of a chunk: its first row, the row behind its last, and the place of the state behind it, or `NOWHERE`.
Behind them come the sources that the convolution sees before the first row, one fewer than it has taps."""
CHAIN_FIELDS = 4
"""A chain's first row, the row behind its last, its first chunk, and the place of the state before it."""
NOWHERE = -1
"""No place of a state. Others are slots of the pool or, counted from -2 down, of the forward's own states."""
_OTHER = {QUERY_SLOT: OTHER_QUERY_SLOT, ITEM_SLOT: OTHER_ITEM_SLOT}


def table_size(rows: int, taps: int) -> int:
    """An upper bound on the numbers of a table of so many rows."""
    chunks = rows * (ROWS_OF_CHUNK + taps - 1 + CHAIN_FIELDS)
    return HEADER + chunks + (3 * MOST_QUERIES + 2) * taps


class ChunkTables:
    """Makes the tables of forwards, in the order in which they are launched.

    What a forward leaves to the next is not where it may still read what it was left itself: programs run in any
    order. So the slots for that have two places in turns, or stand for one of the pool's.
    """

    def __init__(self, taps: int) -> None:
        self._before = taps - 1
        self._places = {slot: slot for slot in _OTHER}

    def of(self, plan: StatePlan) -> Int32:
        """Lay out a forward: counts, chunks, chains, and kept tails, each its slot and its sources.

        Raises:
            ValueError: It has more queries than there are places for their states.
        """
        if not plan.batches:
            return np.zeros(HEADER, np.int32)
        loaded = len(plan.loaded)
        places = self._places_of(plan)
        sources = self._sources(plan, places)
        first, ends, starts, left, before = self._spans(plan.batches, sources)
        order = np.argsort(first)
        first, ends, starts, left, before = (each[order] for each in (first, ends, starts, left, before))

        counts = -(-(ends - first) // CHUNK)
        first_chunks = np.cumsum(counts) - counts
        span = np.arange(len(first)).repeat(counts)
        place = np.arange(len(span)) - first_chunks[span]
        chunk_first = first[span] + place * CHUNK
        chunks = np.empty((len(span), ROWS_OF_CHUNK + self._before), np.int64)
        chunks[:, 0], chunks[:, 1] = chunk_first, np.minimum(chunk_first + CHUNK, ends[span])
        after = np.where(left == NOWHERE, NOWHERE, places[left])
        chunks[:, 2] = np.where(place == counts[span] - 1, after[span], NOWHERE)
        own = chunk_first[:, None] - np.arange(self._before, 0, -1)
        chunks[:, ROWS_OF_CHUNK:] = np.where(place[:, None] == 0, before[span], own)

        # A query that is cut where states are kept stays one chain.
        goes_on = np.zeros(len(first), bool)
        is_whole = (left[:-1] != NOWHERE) & ((ends - first)[:-1] % CHUNK == 0)
        goes_on[1:] = is_whole & (left[1:] != NOWHERE) & (starts[1:] == left[:-1])
        begins, stops = ~goes_on, np.append(~goes_on[1:], True)
        chains = np.stack((first[begins], ends[stops], first_chunks[begins], places[starts[begins]]), axis=1)
        later = starts[begins] >= loaded
        computed = np.arange(loaded, plan.states)
        computed = computed[places[computed] >= 0]
        tails = np.column_stack((places[computed], sources[computed]))
        header = len(chunks), int((~later).sum()), int(later.sum()), len(tails), int(ends.max())
        parts = (
            np.array(header),
            chunks.ravel(),
            chains[~later].ravel(),
            chains[later].ravel(),
            tails.ravel(),
        )
        return np.concatenate(parts, dtype=np.int32, casting="same_kind")

    def _places_of(self, plan: StatePlan) -> Int64:
        """The place of each state."""
        slots = [self._places.get(slot, slot) for slot in plan.loaded.tolist()]
        places = np.append(slots, np.full(plan.states - len(slots), NOWHERE)).astype(np.int64)
        stored = list(zip(plan.stored.tolist(), plan.stored_slots.tolist(), strict=True))
        for state, slot in stored:
            if slot not in _OTHER:
                places[state] = slot
        for state, slot in stored:
            if slot in _OTHER:
                if places[state] == NOWHERE:
                    places[state] = slot if self._places[slot] != slot else _OTHER[slot]
                self._places[slot] = int(places[state])
        own = np.flatnonzero(places == NOWHERE)
        if len(own) > MOST_QUERIES:
            raise ValueError(f"a forward holds {len(own)} queries' states, at most {MOST_QUERIES} fit")
        places[own] = -2 - np.arange(len(own))
        return places

    def _sources(self, plan: StatePlan, places: Int64) -> Int64:
        """The last sources before each state, [states, taps - 1]."""
        sources = -1 - (places[:, None] * self._before + np.arange(self._before))
        for batch in plan.batches:
            if len(batch.ends):
                lengths, first = np.diff(batch.cu_seqlens)[:, None], batch.rows[batch.cu_seqlens[:-1], None]
                place = lengths - np.arange(self._before, 0, -1)
                earlier = np.take_along_axis(sources[batch.starts], place % self._before, axis=1)
                sources[batch.ends] = np.where(place >= 0, first + place, earlier)
        return sources

    def _spans(self, batches: Sequence[SpanBatch], sources: Int64) -> tuple[Int64, ...]:
        """First rows of all spans, rows behind their last, states before and behind them, sources before them."""
        first = np.concatenate([batch.rows[batch.cu_seqlens[:-1]] for batch in batches])
        lengths = np.concatenate([np.diff(batch.cu_seqlens) for batch in batches])
        starts = np.concatenate([batch.starts for batch in batches])
        left = [
            batch.ends if len(batch.ends) else np.full(len(batch.starts), NOWHERE, np.int64)
            for batch in batches
        ]
        return first, first + lengths, starts, np.concatenate(left), sources[starts]
