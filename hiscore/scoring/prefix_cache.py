"""Which pages of the key/value pool hold what: the query cache, and what a split call keeps.

The pool's slots (one token each) come in pages of `PAGE` slots. Full pages of recent queries stay cached, found
by a hash over all token ids up to their end, so that queries with a common beginning share pages. What a split
call needs beside them is lent from the same pool and given back.

Only bookkeeping: no tensor, no device. Everything that reads or writes the pool runs in the order in which it was
packed, so a page may be handed out again as soon as the forwards that use it have been packed.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.errors import PoolExhausted

# As many tokens as the attention kernel reads at a time, or a multiple: then what is found in the pool and what is
# new are cut into the same blocks, and a hit changes no bit of a score.
PAGE = 32


class PrefixCache:
    """Pages of a pool of `pages`; `reserve` of them are never given to the cache while a batch is packed."""

    def __init__(self, pages: int, reserve: int, caching: bool = True) -> None:
        self.pages = pages
        self._reserve = reserve
        self._caching = caching
        self._free_pages = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._in_use: set[bytes] = set()

    def cache_query(self, tokens: Int32, at_most: int) -> tuple[Int64, int]:
        """Find a query's full pages in the cache and make room there for those that are missing.

        tokens: int32 [query]; at_most: how many of them may be taken from the cache. Returns the slots of the
        query's first tokens (int64, a multiple of `PAGE` long) and how many of these already hold keys and values.
        The rest must be written by the forward that computes them, before any later one is packed.
        """
        if not self._caching:
            return np.empty(0, np.int64), 0
        hashes = list(_hashes(tokens))
        found = 0
        while found < len(hashes) and hashes[found] in self._cached and (found + 1) * PAGE <= at_most:
            if not self._may_use(hashes[found]):
                break
            self._in_use.add(hashes[found])
            found += 1
        held = found
        while held < len(hashes) and self._may_use(hashes[held]):
            # A page that `at_most` keeps from being read is written again, with the same contents.
            if hashes[held] not in self._cached:
                self._cached[hashes[held]] = self._take()
            self._in_use.add(hashes[held])
            held += 1
        # The first page becomes the most recent: a query's end is given up before its beginning.
        for value in reversed(hashes[:held]):
            self._cached.move_to_end(value)
        return slots_of([self._cached[value] for value in hashes[:held]]), found * PAGE

    def allocate(self, pages: int) -> list[int]:
        """Take pages out of the pool until they are given back.

        Raises:
            PoolExhausted: there are not so many that are not in use.
        """
        if pages > len(self._free_pages) + len(self._cached) - len(self._in_use):
            raise PoolExhausted
        return [self._take() for _ in range(pages)]

    def free(self, pages: list[int]) -> None:
        self._free_pages.extend(pages)

    def end_batch(self) -> None:
        """All forwards of a batch are packed: what it used may be evicted by the next."""
        self._in_use.clear()

    def forget(self) -> None:
        """Empty the cache, as when a forward failed that should have filled it."""
        self._free_pages.extend(self._cached.values())
        self._cached.clear()
        self._in_use.clear()

    @property
    def cached_pages(self) -> int:
        return len(self._cached)

    def _may_use(self, value: bytes) -> bool:
        """Whether one more page can be in use and leave the reserve to split calls."""
        left = len(self._free_pages) + len(self._cached) - len(self._in_use)
        return value in self._in_use or left > self._reserve

    def _take(self) -> int:
        if not self._free_pages:
            oldest = next(value for value in self._cached if value not in self._in_use)
            self._free_pages.append(self._cached.pop(oldest))
        return self._free_pages.pop()


def slots_of(pages: list[int]) -> Int64:
    """The slots of some pages, in order: int64 [len(pages) * PAGE]."""
    return (np.asarray(pages, np.int64)[:, None] * PAGE + np.arange(PAGE)).ravel()


def _hashes(tokens: Int32) -> Iterator[bytes]:
    """One hash for each full page, over everything up to its end."""
    running = hashlib.blake2b(digest_size=16)
    for end in range(PAGE, len(tokens) + 1, PAGE):
        running.update(np.ascontiguousarray(tokens[end - PAGE : end]).tobytes())
        yield running.copy().digest()
