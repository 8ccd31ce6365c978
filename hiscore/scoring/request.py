"""A request to score: the tokens of one query and its items, the labels, and the options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        first_text: Of pairs (`scoring.pairs`), how many tokens of every item are the query's.
    """

    tokens: Int32
    query_length: int
    item_lengths: Int64
    first_text: int = 0

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
        label_counts: int64 [items]: how many of the labels are each item's own, in turn; None: they are shared.
        columns: Of the scores where the labels are not shared.
    """

    prompt: MultiItemPrompt
    labels: Int32
    options: ScoreOptions
    is_canary: bool = False
    label_counts: Int64 | None = None
    columns: int = 0

    @classmethod
    def of(
        cls, prompt: MultiItemPrompt, labels: Int32, options: ScoreOptions, is_canary: bool = False
    ) -> "ScoreRequest":
        """A request whose labels have been checked against its options."""
        if options.label_counts is None:
            return cls(prompt, labels, options, is_canary)
        counts = np.array(options.label_counts, np.int64)
        return cls(prompt, labels, options, is_canary, counts, int(counts.max(initial=0)))

    def part(self, prompt: MultiItemPrompt, first_item: int) -> "ScoreRequest":
        """The request for some consecutive items of this one, from `first_item` on."""
        if self.label_counts is None:
            return replace(self, prompt=prompt)
        ends = np.concatenate(([0], np.cumsum(self.label_counts)))
        last_item = first_item + len(prompt.item_lengths)
        return replace(
            self,
            prompt=prompt,
            labels=self.labels[ends[first_item] : ends[last_item]],
            label_counts=self.label_counts[first_item:last_item],
        )
