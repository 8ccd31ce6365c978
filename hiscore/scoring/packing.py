"""Packing: the calls of a batch become ragged forwards under a token budget, without padding.

All tokens of all calls stand in one stream: query, items, next query, next items. A forward is a slice of
that stream, at most ``budget`` tokens long, so a batch takes exactly ``ceil(tokens / budget)`` forwards. Query
tokens whose keys and values are cached do not enter the stream.

Attention follows one rule. A *segment* is a run of new tokens of one query or one item; consecutive segments
that see the same *context* form a *group*: a query alone, or the items of a call. A token sees its group's context
and its own segment up to its own place, nothing else. So no mask and no delimiter is needed, and no item can see
another. The context is the query: first what stands in the pool of keys and values (cached, or computed by an
earlier forward of the batch), then what is new in this forward.

Pure NumPy: knows neither Triton nor a device.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import NO_SLOT, Forward, Group
from hiscore.scoring.prefix_cache import PAGE, PrefixCache, slots_of
from hiscore.scoring.request import MultiItemPrompt


@dataclass(frozen=True)
class Batch:
    """The forwards of some calls, to be run in order, and how many tokens of each call were cached."""

    forwards: tuple[Forward, ...]
    cached_tokens: tuple[int, ...]


class _Loan:
    """Pages of the pool that a cut call keeps until the stream has come to `read_until`."""

    def __init__(self, pages: list[int], read_until: int) -> None:
        self.pages = pages
        self.read_until = read_until


class _Packed:
    """A call in the stream. Its tokens are counted from the query's first, whether cached or computed."""

    def __init__(self, call: MultiItemPrompt, begin: int, slots: Int64, cached: int, first_item: int) -> None:
        self.query = call.query_length
        self.tokens = call.tokens
        self.cached = cached
        self.begin = begin - cached  # where token 0 stands in the stream, if it stood there
        self.end = self.begin + len(call.tokens)
        self.first_item = first_item
        self.bounds = np.concatenate(([0], self.query + np.cumsum(np.append(0, call.item_lengths))))
        self.read_at = np.where(call.item_lengths > 0, self.bounds[2:], self.query) - 1
        self.slots = np.full(len(call.tokens), NO_SLOT, np.int64)
        self.slots[: len(slots)] = slots

    def keep_before(self, cut: int, pages: PrefixCache) -> list[_Loan]:
        """Find pool slots for whatever tokens from `cut` on still see."""
        done = cut - self.begin
        spans = [(0, min(done, self.query), self.end)]
        if done > self.query:
            node = int(np.searchsorted(self.bounds, done, side="right")) - 1
            spans.append((int(self.bounds[node]), done, self.begin + int(self.bounds[node + 1])))
        loans = []
        for first, last, read_until in spans:
            missing = first + np.flatnonzero(self.slots[first:last] == NO_SLOT)
            loans.append(_Loan(pages.allocate(-(-len(missing) // PAGE)), read_until))
            self.slots[missing] = slots_of(loans[-1].pages)[: len(missing)]
        return loans


@dataclass
class _Builder:
    """Collects one forward, call by call."""

    rows: int = 0
    input_ids: list[Int32] = field(default_factory=list)
    positions: list[Int64] = field(default_factory=list)
    seqlens: list[Int64] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    slot_mapping: list[Int64] = field(default_factory=list)
    scored_rows: list[Int64] = field(default_factory=list)
    answers: list[Int64] = field(default_factory=list)

    def add(self, p: _Packed, first: int, last: int) -> None:
        """Add tokens `first` to `last` of a call."""
        shift = self.rows - first  # from token to row
        spans = np.diff(p.bounds.clip(first, last))
        nodes = np.flatnonzero(spans)  # the query or an item each, where there is a token of it
        lengths = spans[nodes]
        ends = first + np.cumsum(lengths)
        origins = p.bounds[nodes] - np.where(nodes > 0, p.query, 0)
        self.input_ids.append(p.tokens[first:last])
        self.positions.append(np.arange(first, last) - np.repeat(origins, lengths))
        self.seqlens.append(ends + shift)
        self.slot_mapping.append(p.slots[first:last])
        answered = np.flatnonzero((p.read_at >= first) & (p.read_at < last))
        self.scored_rows.append(p.read_at[answered] + shift)
        self.answers.append(answered + p.first_item)

        none = slice(0, 0)
        items = max(first, p.query)
        if first < p.query:
            self.groups.append(Group(self.rows, min(last, p.query) + shift, p.slots[:first], none))
        elif p.bounds[nodes[0]] < first:
            # The rest of an item that was cut: it sees its own earlier part as well.
            own = p.slots[p.bounds[nodes[0]] : first]
            items = int(ends[0])
            self.groups.append(Group(self.rows, items + shift, np.append(p.slots[: p.query], own), none))
        if items < last:
            in_pool = min(first, p.query)
            new = slice(in_pool + shift, p.query + shift) if first < p.query else none
            self.groups.append(Group(items + shift, last + shift, p.slots[:in_pool], new))
        self.rows = last + shift

    def forward(self) -> Forward:
        return Forward(
            input_ids=np.concatenate(self.input_ids),
            positions=np.concatenate(self.positions).astype(np.int32),
            cu_seqlens=np.concatenate((np.zeros(1), *self.seqlens)).astype(np.int32),
            groups=tuple(self.groups),
            slot_mapping=np.concatenate(self.slot_mapping),
            scored_rows=np.concatenate(self.scored_rows),
            answers=np.concatenate(self.answers),
        )


def pack(calls: Sequence[MultiItemPrompt], budget: int, pages: PrefixCache) -> Batch:
    """Pack calls into forwards of at most `budget` tokens. Calls without items cost nothing: nobody reads them.

    Raises:
        PoolExhausted: what a split call needs to keep does not fit the pool.
    """
    try:
        packed, cached = _stream(calls, pages)
        _keep_what_cuts_need(packed, budget, pages)
    finally:
        pages.end_batch()
    total = packed[-1].end if packed else 0
    forwards = []
    remaining = deque(packed)
    for begin in range(0, total, budget):
        builder, end = _Builder(), min(begin + budget, total)
        while remaining and max(begin, remaining[0].begin + remaining[0].cached) < end:
            p = remaining[0]
            builder.add(p, max(begin - p.begin, p.cached), min(end, p.end) - p.begin)
            if p.end > end:
                break
            remaining.popleft()
        forwards.append(builder.forward())
    return Batch(tuple(forwards), cached)


def _stream(calls: Sequence[MultiItemPrompt], pages: PrefixCache) -> tuple[list[_Packed], tuple[int, ...]]:
    packed: list[_Packed] = []
    cached: list[int] = []
    end = items = 0
    for call in calls:
        hit = 0
        if len(call.item_lengths):
            # The query's last token is computed where an empty item is read there.
            readable = call.query_length - int(call.item_lengths.min() == 0)
            slots, hit = pages.cache_query(call.tokens[: call.query_length], readable)
            packed.append(_Packed(call, end, slots, hit, items))
            end = packed[-1].end
        cached.append(hit)
        items += len(call.item_lengths)
    return packed, tuple(cached)


def _keep_what_cuts_need(packed: Sequence[_Packed], budget: int, pages: PrefixCache) -> None:
    """Lend pool slots to the calls that a forward's end cuts.

    What is lent at a cut is written by the forward before it. So pages may go from one to another only if that
    forward no longer reads them.
    """
    loans: list[_Loan] = []
    cuts = iter(range(budget, packed[-1].end if packed else 0, budget))
    cut = next(cuts, None)
    try:
        for p in packed:
            while cut is not None and cut < p.end:
                if cut > p.begin + p.cached:
                    for loan in [loan for loan in loans if loan.read_until <= cut - budget]:
                        pages.free(loan.pages)
                        loans.remove(loan)
                    loans += p.keep_before(cut, pages)
                cut = next(cuts, None)
    finally:
        for loan in loans:
            pages.free(loan.pages)


def pool_reserve(context_length: int, budget: int) -> int:
    """Pages that splitting calls of this context may need at once: two calls', each page begun anew at a cut."""
    cuts = -(-context_length // budget) + 2
    return 2 * (context_length // PAGE + cuts)
