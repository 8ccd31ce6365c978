"""Prompts whose labels have several tokens: what is computed behind an item is packed as items, too.

A label's tokens are predicted by the item's last row, and by rows of the label itself behind the item. An item is
therefore computed with each path of its labels (`LabelTrie`). Where that would cost more, a query of its own holds
the query, the item, and what all paths have in common; the pages of the query itself are found in the cache.
"""

from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from hiscore.arrays import Int64
from hiscore.attention.metadata import MAX_CONTEXT_SLOTS, TOKEN_BITS
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.label_trie import LabelTrie
from hiscore.scoring.requests.query_key import PAGE, QueryKey
from hiscore.scoring.requests.request import MultiItemPrompt


def choose_apart(prompt: MultiItemPrompt, budget: int, cache: QueryCache) -> MultiItemPrompt:
    """Choose the items to compute in a query of their own, for forwards of `budget` tokens.

    The choice depends on the request alone, and so does every bit of its scores.
    """
    if prompt.tries is None or cache.states is not None or not cache.can_hold(prompt.query_key):
        return prompt
    query = prompt.query_length
    # The contexts of a forward have to fit as well.
    least = 2 * query * budget / MAX_CONTEXT_SLOTS
    apart = [
        (once := query % PAGE + trie.computed(item, True)) < trie.computed(item, False) and once >= least
        for trie, item in zip(prompt.tries, prompt.item_lengths.tolist(), strict=True)
    ]
    return replace(prompt, apart=np.array(apart, bool))


def branched(prompt: MultiItemPrompt) -> list[tuple[MultiItemPrompt, Int64, Int64]]:
    """Turn a prompt into those that are computed, each with the numbers of the rows that are read.

    Numbers, int64, are those of the ends of its items and of its places. They count through the items' tries, or
    without tries through items and then places.
    """
    if prompt.tries is None:
        items = len(prompt.item_lengths)
        return [(prompt, np.arange(items), np.arange(items, prompt.rows_read))]
    ends = prompt.item_ends.tolist()
    apart = [False] * (len(ends) - 1) if prompt.apart is None else prompt.apart.tolist()
    query, tokens = prompt.tokens[: prompt.query_length].tolist(), prompt.tokens.tolist()
    together = _Branches(query)
    found = []
    first = 0
    for trie, alone, (begin, end) in zip(prompt.tries, apart, pairwise(ends), strict=True):
        item, shared = tokens[begin:end], trie.shared
        # Whatever computes an item's last token computes its labels.
        mark = (item or query)[-1] >> TOKEN_BITS << TOKEN_BITS
        paths = [[token + mark for token in path] for path in trie.paths]
        if alone:
            own = _Branches([*query, *item, *paths[0][:shared]])
            own.add([], first, range(-shared - 1, 0))
            for path, row in zip(paths, trie.firsts, strict=True):
                own.add(path[shared:], first + row, range(len(path) - shared))
            key = prompt.query_key
            behind = np.array(own.query[len(query) :], np.int32).tobytes()
            whole = blake2b(behind, digest_size=16, key=key.whole).digest()
            found.append(own.made(prompt, QueryKey(key.pages, whole)))
        else:
            together.add_paths(item, trie, paths, first)
        first += trie.reads
    if together.items:
        found.append(together.made(prompt, prompt.query_key))
    return found


class _Branches:
    """A query, and items of which some of the last rows are read."""

    def __init__(self, query: list[int]) -> None:
        self.query = query
        self.items: list[list[int]] = []
        self._length = 0
        self._ends: list[int] = []
        self._places: list[int] = []
        self._rows: list[int] = []

    def add(self, item: list[int], row: int, read: range) -> None:
        """Add an item whose tokens in `read` are read, the last among them, in rows from `row` on."""
        self._places += (self._length + token for token in read[:-1])
        self._rows += range(row, row + len(read) - 1)
        self._ends.append(row + len(read) - 1)
        self.items.append(item)
        self._length += len(item)

    def add_paths(self, item: list[int], trie: LabelTrie, paths: list[list[int]], first: int) -> None:
        begin = len(item)
        if not begin or not paths:
            self.add(item, first, range(-1, 0))
        for index, (path, row) in enumerate(zip(paths, trie.firsts, strict=True)):
            whole = [*item, *path]
            if index:
                self.add(whole, first + row, range(begin + trie.shared, len(whole)))
            else:
                self.add(whole, first + (not begin), range(begin - (begin > 0), len(whole)))

    def made(self, prompt: MultiItemPrompt, key: QueryKey) -> tuple[MultiItemPrompt, Int64, Int64]:
        places = np.array(self._places, np.int64)
        made = replace(MultiItemPrompt.of(self.query, self.items), is_long=prompt.is_long, places=places)
        vars(made)["query_key"] = key
        return made, np.array(self._ends, np.int64), np.array(self._rows, np.int64)
