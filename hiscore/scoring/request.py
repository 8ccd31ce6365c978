"""A request to score: the tokens of one query and its items, the labels, and the options."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.scoring.options import ScoreOptions


@dataclass(frozen=True)
class MultiItemPrompt:
    """The query's tokens, then the tokens of every item, end to end and without delimiters.

    Attributes:
        tokens: int32 [query_length + sum(item_lengths)].
        query_length: Tokens of the query; 0 for an empty one.
        item_lengths: int64 [items]: tokens of each item; 0 for an empty one.
    """

    tokens: Int32
    query_length: int
    item_lengths: Int64

    @classmethod
    def of(cls, query: Sequence[int], items: Sequence[Sequence[int]]) -> "MultiItemPrompt":
        """Join the token ids of a query and its items."""
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        total = len(query) + int(lengths.sum())
        return cls(np.fromiter(chain(query, *items), np.int32, total), len(query), lengths)


@dataclass(frozen=True)
class ScoreRequest:
    """A validated request.

    Attributes:
        prompt: Query and items.
        labels: int32 [labels]: token ids of the labels; empty for a classifier.
        options: How logits become scores.
        is_canary: The launcher's health probe, which is not counted as work.
    """

    prompt: MultiItemPrompt
    labels: Int32
    options: ScoreOptions
    is_canary: bool = False
