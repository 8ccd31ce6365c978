"""Packing: the calls of a batch become ragged forwards under a token budget, without padding.

All tokens of all calls stand in one stream: query, items, next query, next items. A forward is a slice of
that stream, at most ``budget`` tokens long, so a batch takes exactly ``ceil(tokens / budget)`` forwards. What a
later slice still needs of an earlier one (the query of the call that was cut, and the part of a cut item) is
kept: its keys and values are carried over and stand before the new ones.

Attention follows one rule. A *segment* is a run of new tokens of one query or one item. Each of its tokens sees
the segment's *context* (for an item: its query, and its own earlier part if it was cut; nothing else), and the
segment itself up to its own place. So no mask and no delimiter is needed, and no item can see another.

Pure NumPy: knows neither Triton nor a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiscore.layout import Call

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

NO_CONTEXT = 0


@dataclass(frozen=True)
class Forward:
    """One packed, prefill-only forward over T new tokens.

    Keys and values live in *slots*: slots 0..kept-1 hold what the forward before kept, slot ``kept + row`` belongs
    to the new token in that row.
    """

    input_ids: Int32
    """int32 [T]"""
    positions: Int32
    """int32 [T]: every item continues its query's positions, whatever stands between them in the stream."""
    cu_seqlens: Int32
    """int32 [segments + 1]: rows of segment s are cu_seqlens[s] to cu_seqlens[s + 1]."""
    context_of: Int32
    """int32 [segments]: which of `contexts` a segment sees."""
    contexts: tuple[Int64, ...]
    """Slots of the tokens at positions 0, 1, 2, ... before a segment; the first context is empty."""
    kept: int
    """How many slots were carried over from the forward before."""
    keep: Int64
    """int64: slots to carry over to the next forward, in the order they take there."""
    scored_rows: Int64
    """int64 [R]: the rows read out, one for each answered item; empty items share their query's last row."""
    answers: Int64
    """int64 [R]: the item that each scored row answers, counted over the whole batch."""


@dataclass(frozen=True)
class _Stream:
    """All nodes (queries and items) of a batch, end to end."""

    tokens: Int32
    begin: Int64
    end: Int64
    call: Int64
    query_begin: Int64  # of a node's call
    query_end: Int64
    is_item: npt.NDArray[np.bool_]


def pack(calls: Sequence[Call], budget: int) -> list[Forward]:
    """Pack calls into forwards of at most `budget` tokens. Calls without items cost nothing: nobody reads them."""
    stream = _lay_end_to_end(calls)
    scored = _scored_tokens(stream)
    cuts = range(0, len(stream.tokens), budget)
    kept = [_kept_tokens(stream, cut) for cut in cuts] + [np.empty(0, np.int64)]
    return [
        _forward(stream, scored, cut, min(cut + budget, len(stream.tokens)), kept[index], kept[index + 1])
        for index, cut in enumerate(cuts)
    ]


def _lay_end_to_end(calls: Sequence[Call]) -> _Stream:
    lengths, call_of, is_item, tokens = [], [], [], []
    for index, call in enumerate(calls):
        if len(call.item_lengths) == 0:
            continue
        lengths.append(np.concatenate(([call.query_length], call.item_lengths)))
        call_of.append(np.full(len(lengths[-1]), index))
        is_item.append(np.arange(len(lengths[-1])) > 0)
        tokens.append(call.tokens)
    if not tokens:
        none = np.empty(0, np.int64)
        return _Stream(none.astype(np.int32), none, none, none, none, none, none.astype(np.bool_))
    end = np.cumsum(np.concatenate(lengths))
    begin = np.concatenate(([0], end[:-1]))
    items = np.concatenate(is_item)
    query_node = np.maximum.accumulate(np.where(items, 0, np.arange(len(items))))
    return _Stream(
        tokens=np.concatenate(tokens),
        begin=begin,
        end=end,
        call=np.concatenate(call_of),
        query_begin=begin[query_node],
        query_end=end[query_node],
        is_item=items,
    )


def _scored_tokens(stream: _Stream) -> Int64:
    """Where each item is read: at its last token, or at its query's where it has none."""
    last = np.where(stream.end > stream.begin, stream.end, stream.query_end) - 1
    return last[stream.is_item]


def _kept_tokens(stream: _Stream, cut: int) -> Int64:
    """The tokens before `cut` that tokens after it still see, ascending."""
    node = int(np.searchsorted(stream.end, cut, side="right"))
    query = np.arange(stream.query_begin[node], min(stream.query_end[node], cut))
    own = np.arange(stream.begin[node], cut) if stream.is_item[node] else np.empty(0, np.int64)
    return np.concatenate((query, own))


def _forward(stream: _Stream, scored: Int64, begin: int, end: int, kept: Int64, keep: Int64) -> Forward:
    nodes = slice(
        np.searchsorted(stream.end, begin, side="right"), np.searchsorted(stream.begin, end, side="left")
    )
    node_begin, node_end = stream.begin[nodes], stream.end[nodes]
    seg_begin, seg_end = np.maximum(node_begin, begin), np.minimum(node_end, end)
    filled = seg_end > seg_begin
    lengths = (seg_end - seg_begin)[filled]
    is_item = stream.is_item[nodes]
    # A token's position is its distance from its node's begin, after the query for an item.
    origin = node_begin - np.where(is_item, (stream.query_end - stream.query_begin)[nodes], 0)

    def slots(tokens: Int64) -> Int64:
        return np.where(tokens >= begin, len(kept) + tokens - begin, np.searchsorted(kept, tokens))

    contexts: list[Int64] = [np.empty(0, np.int64)]
    calls, first = np.unique(stream.call[nodes][is_item], return_index=True)
    for item in np.flatnonzero(is_item)[first]:
        contexts.append(slots(np.arange(stream.query_begin[nodes][item], stream.query_end[nodes][item])))
    context_of = np.where(is_item, np.searchsorted(calls, stream.call[nodes]) + 1, NO_CONTEXT)
    if node_begin[0] < begin:
        # The first node was cut: what was kept is all that its rest sees.
        contexts.append(np.arange(len(kept)))
        context_of[0] = len(contexts) - 1

    answered = np.flatnonzero((scored >= begin) & (scored < end))
    return Forward(
        input_ids=stream.tokens[begin:end],
        positions=(np.arange(begin, end) - np.repeat(origin[filled], lengths)).astype(np.int32),
        cu_seqlens=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        context_of=context_of[filled].astype(np.int32),
        contexts=tuple(contexts),
        kept=len(kept),
        keep=slots(keep),
        scored_rows=scored[answered] - begin,
        answers=answered,
    )
