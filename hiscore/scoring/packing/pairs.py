"""Prompts of an encoder: every item behind a copy of the query, packed into forwards of whole pairs.

An encoder attends in both directions, so what it computes of a query depends on the item: nothing can be shared,
and no pair can be cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.attention.metadata import NO_SLOT, Forward, SegmentGroup
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.requests.request import MultiItemPrompt


@dataclass(frozen=True)
class PairRules:
    """The rules by which an encoder reads its rows.

    Attributes:
        token_types: Of the query's tokens and of the item's; a text without a query has the first.
        first_position: Position of a pair's first token.
        uncounted_id: A token that is not counted in positions and has the one before the first; None: all count.
        reads: Rows of a pair that the head reads.
    """

    token_types: tuple[int, int] = (0, 0)
    first_position: int = 0
    uncounted_id: int | None = None
    reads: Literal["first", "last", "all"] = "first"

    def positions(self, tokens: Int32, edges: Int64) -> Int32:
        """The position of every token of pairs that begin and end at `edges`: int32 [T]."""
        counted = np.ones(len(tokens), bool) if self.uncounted_id is None else tokens != self.uncounted_id
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counted)))
        place = before[1:] - np.repeat(before[edges[:-1]], np.diff(edges))  # 1, 2, 3, ...
        positions: Int32 = (self.first_position - 1 + place * counted).astype(np.int32)
        return positions


def as_pairs(prompt: MultiItemPrompt) -> MultiItemPrompt:
    """Copy the query to the front of every item: what an encoder computes, and what a request costs it."""
    items, query = len(prompt.item_lengths), prompt.query_length
    lengths = prompt.item_lengths + query
    ends = np.cumsum(lengths)
    is_query = np.zeros(int(ends[-1]) if items else 0, bool)
    is_query[(ends - lengths)[:, None] + np.arange(query)] = True
    tokens = np.empty(len(is_query), np.int32)
    tokens[is_query] = np.tile(prompt.tokens[:query], items)
    tokens[~is_query] = prompt.tokens[query:]
    return replace(prompt, tokens=tokens, query_length=0, item_lengths=lengths, first_text=query)


def pack_pairs(prompts: Sequence[MultiItemPrompt], budget: int, rules: PairRules) -> Batch:
    """Pack pairs (`as_pairs`) in order; one longer than `budget` tokens gets a forward of its own."""
    tokens = np.concatenate([np.empty(0, np.int32), *(prompt.tokens for prompt in prompts)])
    lengths = np.concatenate([np.empty(0, np.int64), *(prompt.item_lengths for prompt in prompts)])
    firsts = np.repeat(
        [prompt.first_text for prompt in prompts], [len(each.item_lengths) for each in prompts]
    )
    edges = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    items, places = _numbered(prompts)
    forwards = []
    begin = 0
    while begin < len(lengths):
        fit = int(np.searchsorted(edges, edges[begin] + budget, side="right")) - 1
        end = max(fit, begin + 1)
        rows = slice(int(edges[begin]), int(edges[end]))
        inside = places[:, slice(*places[0].searchsorted((rows.start, rows.stop)))] - [[rows.start], [0]]
        forwards.append(
            _forward(
                tokens[rows],
                edges[begin : end + 1] - edges[begin],
                firsts[begin:end],
                items[begin:end],
                inside,
                rules,
            )
        )
        begin = end
    return Batch(tuple(forwards), (0,) * len(prompts))


def _numbered(prompts: Sequence[MultiItemPrompt]) -> tuple[Int64, Int64]:
    """Number what is read, of each prompt its items and then its places.

    The numbers of items are int64 [items]; of places [2, places]: the row of each in the batch, and its number.
    """
    items, places, first, row = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)], 0, 0
    for prompt in prompts:
        end = first + len(prompt.item_lengths)
        items.append(np.arange(first, end))
        places.append(np.stack((row + prompt.places, end + np.arange(len(prompt.places)))))
        first, row = end + len(prompt.places), row + len(prompt.tokens)
    return np.concatenate(items), np.concatenate(places, axis=1)


def _forward(
    tokens: Int32, edges: Int64, firsts: Int64, items: Int64, places: Int64, rules: PairRules
) -> Forward:
    """One forward over pairs that begin and end at `edges`, with `firsts` tokens of the query each."""
    rows = len(tokens)
    place = np.arange(rows) - np.repeat(edges[:-1], np.diff(edges))
    query_length = np.repeat(firsts, np.diff(edges))
    of_item = (place >= query_length) & (query_length > 0)
    return Forward(
        input_ids=tokens,
        positions=rules.positions(tokens, edges),
        cu_seqlens=edges.astype(np.int32),
        groups=(SegmentGroup(0, rows, np.empty(0, np.int64), slice(0, 0)),),
        slot_mapping=np.full(rows, NO_SLOT, np.int64),
        scored_rows=np.concatenate(
            ({"first": edges[:-1], "last": edges[1:] - 1, "all": np.arange(rows)}[rules.reads], places[0])
        ),
        scored_items=np.concatenate((items, places[1])),
        token_types=np.where(of_item, rules.token_types[1], rules.token_types[0]).astype(np.int32),
    )
