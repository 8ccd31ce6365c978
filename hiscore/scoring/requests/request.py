"""A request to score: the tokens of one query and its items, the labels, and the options."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress

import numpy as np

from hiscore.arrays import Bool, Int32, Int64
from hiscore.scoring.requests.label_trie import LabelTrie
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE, QueryKey

NO_PLACES: Int64 = np.empty(0, np.int64)


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
        places: int64 [places], ascending: tokens at which values are read, counted from the first item's first;
            those of the query's end are negative.
        tries: The labels of each item, where the rows behind it are read as well (`packing.branches`).
        apart: bool [items], with `tries`: the item is computed once, in a query of its own.
        queries: The query as adapters compute it for some items or others (`adapters`), each int32 [query_length];
            empty: for all items alike.
        query_of: int64 [items], with `queries`: the index of each item's.
    """

    tokens: Int32
    query_length: int
    item_lengths: Int64
    first_text: int = 0
    is_long: bool = False
    places: Int64 = field(default_factory=lambda: NO_PLACES)
    tries: tuple[LabelTrie, ...] | None = None
    apart: Bool | None = None
    queries: tuple[Int32, ...] = ()
    query_of: Int64 | None = None

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
    def query_keys(self) -> tuple[QueryKey, ...]:
        """The keys of all its queries."""
        if not self.queries:
            return (self.query_key,)
        return tuple(QueryKey.of(query, b"long" if self.is_long else b"") for query in self.queries)

    def by_query(self) -> "list[tuple[MultiItemPrompt, Bool | None]]":
        """Part items by their queries: prompts of one query each, and their items, bool [items]; None: all."""
        if self.query_of is None:
            return [(self, None)]
        found: list[tuple[MultiItemPrompt, Bool | None]] = []
        for index, (query, key) in enumerate(zip(self.queries, self.query_keys, strict=True)):
            if not (own := self.query_of == index).any():
                continue
            part = self.chosen(own)
            tokens = np.concatenate((query, part.tokens[self.query_length :]))
            part = replace(part, tokens=tokens, queries=(), query_of=None)
            vars(part)["query_key"] = key
            found.append((part, own))
        return found

    @cached_property
    def item_ends(self) -> Int64:
        """int64 [items + 1]: the end of the query and of each item among the tokens."""
        return self.query_length + np.concatenate(([0], np.cumsum(self.item_lengths)))

    @cached_property
    def cost_ends(self) -> Int64:
        """`item_ends` with the tokens that are computed for labels."""
        if self.tries is None:
            return self.item_ends
        apart = np.zeros(len(self.tries), bool) if self.apart is None else self.apart
        each = zip(self.tries, self.item_lengths.tolist(), apart.tolist(), strict=True)
        again = self.query_length % PAGE
        costs = [trie.computed(item, alone) + again * alone for trie, item, alone in each]
        return self.query_length + np.cumsum([0, *costs], dtype=np.int64)

    @property
    def computed(self) -> int:
        return max(len(self.queries), 1) * self.query_length + self.computed_items

    @property
    def computed_items(self) -> int:
        return (len(self.tokens) if self.tries is None else int(self.cost_ends[-1])) - self.query_length

    @property
    def rows_read(self) -> int:
        if self.tries is not None:
            return sum(trie.reads for trie in self.tries)
        return len(self.item_lengths) + len(self.places)

    def rows_of(self, items: Bool) -> Int64:
        """The numbers of the rows that some items have among all that are read, int64."""
        if self.tries is not None:
            return np.flatnonzero(items.repeat([trie.reads for trie in self.tries]))
        owners = self.item_ends[1:].searchsorted(self.places + self.query_length, "right")
        return np.flatnonzero(np.concatenate((items, items[owners])))

    @cached_property
    def query_reads(self) -> int:
        """Count the query's last rows that must be computed: those from the first that is read on."""
        return max(int(self.empty_items > 0), -int(self.places.min(initial=0)))

    @cached_property
    def empty_items(self) -> int:
        """The number of items that are scored at the query's last token."""
        return len(self.item_lengths) - int(np.count_nonzero(self.item_lengths))

    def part(self, first: int, last: int) -> "MultiItemPrompt":
        """The query with items `first` to `last` alone."""
        items = np.zeros(len(self.item_lengths), bool)
        items[first:last] = True
        return self.chosen(items)

    def chosen(self, items: Bool) -> "MultiItemPrompt":
        of_chosen = np.repeat(items, self.item_lengths)
        own = self.tokens[self.query_length :][of_chosen]
        tokens = np.concatenate((self.tokens[: self.query_length], own))
        places = (np.cumsum(of_chosen) - 1)[self.places[of_chosen[self.places]]]
        chosen = replace(
            self,
            tokens=tokens,
            item_lengths=self.item_lengths[items],
            places=places,
            tries=None if self.tries is None else tuple(compress(self.tries, items)),
            apart=None if self.apart is None else self.apart[items],
            query_of=None if self.query_of is None else self.query_of[items],
        )
        vars(chosen)["query_key"], vars(chosen)["query_keys"] = self.query_key, self.query_keys  # hashed once
        return chosen

    def with_items_of(self, others: "Sequence[MultiItemPrompt]") -> "MultiItemPrompt":
        """This prompt and the items of others with the same query."""
        if not others:
            return self
        own = [other.tokens[other.query_length :] for other in others]
        lengths = [other.item_lengths for other in others]
        before = np.cumsum([len(self.tokens) - self.query_length, *map(len, own)])
        places = [
            other.places + first * (other.places >= 0) for other, first in zip(others, before, strict=False)
        ]
        joined = replace(
            self,
            tokens=np.concatenate((self.tokens, *own)),
            item_lengths=np.concatenate((self.item_lengths, *lengths)),
            places=np.concatenate((self.places, *places)),
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
        places: int32 [places]: the tokens of the prompt's places, counted as the caller does; None: none are asked
            for, which is not the same as none.
        scores_items: False: the answer has the values at places alone.
        by_heads: Labels are rows of adapters' heads.
    """

    prompt: MultiItemPrompt
    labels: Int32
    options: ScoreOptions
    is_canary: bool = False
    label_counts: Int64 | None = None
    columns: int = 0
    first_item: int = 0
    as_row: bool = False
    places: Int32 | None = None
    scores_items: bool = True
    by_heads: bool = False

    @classmethod
    def of(
        cls, prompt: MultiItemPrompt, labels: Int32, options: ScoreOptions, is_canary: bool = False
    ) -> "ScoreRequest":
        """A request whose labels have been checked against its options; those of a prompt's tries are there."""
        if prompt.tries is not None:
            of_each = [len(trie.lengths) for trie in prompt.tries]
        elif options.label_counts is None:
            return cls(prompt, labels, options, is_canary)
        else:
            of_each = [*options.label_counts]
        counts = np.array(of_each, np.int64)
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
