"""A request to score: the tokens of one query and its items, the labels, and the options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from hiscore.arrays import Bool, Int32, Int64
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import QueryKey


@dataclass(frozen=True)
class MultiItemPrompt:
    """The query's tokens, then the tokens of every item, end to end and without delimiters.

    Example:
        >>> prompt = MultiItemPrompt.of([1, 2, 3], [[4, 5], [6]])
        >>> prompt.tokens
        array([1, 2, 3, 4, 5, 6], dtype=int32)
        >>> prompt.query_length, prompt.item_lengths
        (3, array([2, 1]))

    Attributes:
        tokens: int32 [query_length + sum(item_lengths)].
        query_length: Tokens of the query; 0 for an empty one.
        item_lengths: int64 [items]: tokens of each item; 0 for an empty one.
        first_text: Of pairs (`scoring.pairs`), how many tokens of every item are the query's.
        is_long: With longrope, whether each item with the query is longer than the original context (`longrope`).
    """

    tokens: Int32
    query_length: int
    item_lengths: Int64
    first_text: int = 0
    is_long: bool = False

    @classmethod
    def of(cls, query: Sequence[int], items: Sequence[Sequence[int]]) -> "MultiItemPrompt":
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        total = len(query) + int(lengths.sum())
        return cls(np.fromiter(chain(query, *items), np.int32, total), len(query), lengths)

    @cached_property
    def query_key(self) -> QueryKey:
        """The key by which the query is looked up; hashed once."""
        # The same tokens have other keys where they are rotated otherwise.
        return QueryKey.of(self.tokens[: self.query_length], b"long" if self.is_long else b"")

    @cached_property
    def item_ends(self) -> Int64:
        """int64 [items + 1]: the end of the query and of each item among the tokens."""
        return self.query_length + np.concatenate(([0], np.cumsum(self.item_lengths)))

    @cached_property
    def empty_items(self) -> int:
        """The number of items that are scored at the query's last token."""
        return len(self.item_lengths) - int(np.count_nonzero(self.item_lengths))

    def part(self, first: int, last: int) -> "MultiItemPrompt":
        """The query with items `first` to `last` alone."""
        query, items = self.tokens[: self.query_length], self.item_ends[[first, last]]
        tokens = np.concatenate((query, self.tokens[items[0] : items[1]]))
        part = replace(self, tokens=tokens, item_lengths=self.item_lengths[first:last])
        vars(part)["query_key"] = self.query_key  # all parts share it
        return part

    def chosen(self, items: Bool) -> "MultiItemPrompt":
        """The query with the items that `items`, bool [items], names."""
        own = self.tokens[self.query_length :][np.repeat(items, self.item_lengths)]
        tokens = np.concatenate((self.tokens[: self.query_length], own))
        chosen = replace(self, tokens=tokens, item_lengths=self.item_lengths[items])
        vars(chosen)["query_key"] = self.query_key
        return chosen

    def with_items_of(self, others: "Sequence[MultiItemPrompt]") -> "MultiItemPrompt":
        """This prompt and the items of others with the same query."""
        if not others:
            return self
        own = [other.tokens[other.query_length :] for other in others]
        lengths = [other.item_lengths for other in others]
        joined = replace(
            self,
            tokens=np.concatenate((self.tokens, *own)),
            item_lengths=np.concatenate((self.item_lengths, *lengths)),
        )
        vars(joined)["query_key"] = self.query_key
        return joined


@dataclass(frozen=True)
class ScoreRequest:
    """A validated request.

    Attributes:
        labels: int32 [labels]: token ids; empty for a classifier.
        is_canary: The launcher's health probe, which is not counted as work.
        label_counts: int64 [items]: how many labels are each item's own, in turn; None: they are shared.
        columns: Columns of the scores where the labels are not shared.
        first_item: Number of a part's first item in the whole request.
        as_row: The answer is the only item's probabilities, without the dimension of items.
    """

    prompt: MultiItemPrompt
    labels: Int32
    options: ScoreOptions
    is_canary: bool = False
    label_counts: Int64 | None = None
    columns: int = 0
    first_item: int = 0
    as_row: bool = False

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
        """Make the request for some consecutive items of this one, from `first_item` on."""
        if self.label_counts is None:
            return replace(self, prompt=prompt)
        ends = np.concatenate(([0], np.cumsum(self.label_counts)))
        last_item = first_item + len(prompt.item_lengths)
        return replace(
            self,
            prompt=prompt,
            labels=self.labels[ends[first_item] : ends[last_item]],
            label_counts=self.label_counts[first_item:last_item],
            first_item=self.first_item + first_item,
        )
