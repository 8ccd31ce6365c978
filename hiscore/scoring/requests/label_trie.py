"""Labels of several tokens, and the rows behind an item that predict them: labels that begin alike share rows."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from hiscore.arrays import Int32, Int64, common_prefix
from hiscore.errors import RequestError

LABEL_ROWS = 8_192
"""Rows of one item's labels, which are read together, that are planned for if the context is shorter."""


@dataclass(frozen=True, eq=False)
class LabelTrie:
    """The labels of an item.

    Row 0 is the item's last. The rows that follow are those of the tokens with which all paths begin, and then
    the rest of each path.

    Example:
        >>> trie = LabelTrie.of([(5,), (6, 7), (6, 8, 9)])
        >>> trie.paths, trie.rows, trie.ids
        (((6, 8),), array([0, 0, 1, 0, 1, 2]), array([5, 6, 7, 6, 8, 9], dtype=int32))

    Attributes:
        paths: The labels without their last tokens, but for those with which another path begins.
        shared: How many tokens all paths have in common from their first on.
        firsts: Of each path, the row behind what is shared.
        rows: int64 [tokens of all labels]: the row that predicts each.
        ids: int32 [tokens of all labels].
        lengths: int64 [labels].
        sizes: int64 [labels]: what a label's logarithm is divided by, as its length, or 1.
    """

    paths: tuple[tuple[int, ...], ...]
    shared: int
    firsts: tuple[int, ...]
    rows: Int64
    ids: Int32
    lengths: Int64
    sizes: Int64

    @classmethod
    def of(cls, labels: Sequence[tuple[int, ...]], sizes: Sequence[int] = ()) -> "LabelTrie":
        beginnings = sorted({label[:-1] for label in labels} | {()})
        ends = [*beginnings[1:], None]
        paths = [
            path
            for path, after in zip(beginnings, ends, strict=True)
            if path and (after is None or after[: len(path)] != path)
        ]
        shared = common_prefix(paths) if paths else 0
        firsts = [*accumulate((len(path) - shared for path in paths), initial=1 + shared)]
        rows: list[int] = []
        for label in labels:
            first = firsts[bisect_left(paths, label[:-1])] if len(label) > 1 else 0
            rows += (row if row <= shared else first + row - shared - 1 for row in range(len(label)))
        return cls(
            tuple(paths),
            shared,
            tuple(firsts[:-1]),
            np.array(rows, np.int64),
            np.array([token for label in labels for token in label], np.int32),
            np.array([*map(len, labels)], np.int64),
            np.array(sizes or [1] * len(labels), np.int64),
        )

    @cached_property
    def reads(self) -> int:
        return 1 + self.shared + sum(len(path) - self.shared for path in self.paths)

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.paths), default=0)

    def computed(self, item: int, apart: bool) -> int:
        """Count the tokens to compute behind the query of an item of so many tokens.

        Args:
            apart: The item is computed once, else with each path.
        """
        own = self.reads - 1
        return item + own if apart else item + own + (len(self.paths) - 1) * (item + self.shared) * (own > 0)


def tries_of(
    ids: Int32, lengths: Sequence[int], sizes: Sequence[int], counts: Sequence[int] | None, items: int
) -> tuple[LabelTrie, ...]:
    """Make the trie of each item; given `counts`, so many labels are each item's own, in turn."""
    tokens = ids.tolist()
    labels = [tuple(tokens[begin:end]) for begin, end in pairwise(accumulate(lengths, initial=0))]
    if counts is None:
        return (_distinct(labels, sizes, ""),) * items
    known: dict[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], LabelTrie] = {}
    found = []
    for item, (begin, end) in enumerate(pairwise(accumulate(counts, initial=0))):
        own, of_own = tuple(labels[begin:end]), tuple(sizes[begin:end])
        if (own, of_own) not in known:
            known[own, of_own] = _distinct(own, of_own, f" of item {item}")
        found.append(known[own, of_own])
    return tuple(found)


def _distinct(labels: Sequence[tuple[int, ...]], sizes: Sequence[int], whose: str) -> LabelTrie:
    first: dict[tuple[int, ...], int] = {}
    for index, label in enumerate(labels):
        if first.setdefault(label, index) != index:
            raise RequestError(f"labels {first[label]} and {index}{whose} are the same tokens")
    return LabelTrie.of(labels, sizes)
