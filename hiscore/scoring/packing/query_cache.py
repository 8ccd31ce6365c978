"""Bookkeeping of the KV pool's pages: cached queries, and what a prompt keeps from one forward to the next.

The pool's slots, one per token, come in pages of `PAGE`. Full pages of recent queries stay cached under a hash of
all token ids up to their end, so queries with a common prefix share pages.

Reads and writes of the pool run in the order in which they were packed, so a page may be reused as soon as the
forwards that use it have been packed. Only a batch in slices runs on after others that were packed later: until
it is launched to its end they keep off its pages (`held`).
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hiscore.arrays import Int64
from hiscore.errors import PoolExhausted
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.requests.query_key import PAGE, QueryKey


class QueryCache:
    """Allocates the pages of a KV pool, and caches queries in those that are left over."""

    def __init__(
        self, pages: int, reserve: int, caching: bool = True, states: StateCache | None = None
    ) -> None:
        """Start with all pages free; every batch can `allocate` up to `reserve` of them.

        Where layers are recurrent, `states` has the states without which pages alone are of no use.
        """
        self.caching, self.states = caching, states
        self.holds = False
        self._most_reserved = self._reserve = reserve
        self._pages = pages
        # Looked up in a third of the time that it takes to work them out, for each call anew.
        self._slots = np.arange(pages * PAGE).reshape(pages, PAGE)
        self._free_pages = list(range(pages - 1, -1, -1))
        self._cached: OrderedDict[bytes, int] = OrderedDict()  # page by hash, least recently used first
        self._in_use: set[bytes] = set()  # by the batch that is being packed, or read by the one that is held
        self._queries: list[tuple[bytes, ...]] = []  # of that batch, or of the last one: the pages it uses
        self._taken: set[bytes] = set()  # those among them that it writes for the first time
        self._held: list[tuple[bytes, ...]] = []
        self._unwritten: dict[bytes, int] = {}  # pages that the held batch writes

    def begin_batch(self, reserve: int, hits: Iterable[tuple[QueryKey, int]] = ()) -> None:
        """Begin a batch: its queries leave `reserve` pages to `allocate`, and what `hits` counts stays cached."""
        self._queries, self._taken = [], set()
        self._reserve = min(reserve, self._most_reserved)
        for key, pages in hits:
            self._in_use.update(key.pages[:pages])
            if self.states is not None:
                self.states.use(key, pages * PAGE)

    def leading_pages(self, key: QueryKey, more: Container[bytes] = ()) -> int:
        """Count a query's leading pages that are cached, or among `more`; on any thread, without a change."""
        return key.leading(self._cached, more) if self.caching else 0

    def hit(self, key: QueryKey, most: int, more: Container[bytes] = ()) -> int:
        """Count a query's first tokens, at most `most`, that need not be computed: a multiple of `PAGE`."""
        tokens = min(self.leading_pages(key, more), most // PAGE) * PAGE
        return tokens if self.states is None else self.states.find(key, tokens)

    def can_hold(self, key: QueryKey) -> bool:
        # While it is computed, a batch of several forwards may keep as much again.
        return self.caching and 2 * len(key.pages) <= self._pages

    def acquire_query(self, key: QueryKey, max_hit: int) -> tuple[Int64, int]:
        """Look up a query's full pages, up to `max_hit` tokens, and cache the others as far as there is room.

        Returns:
            The slots of the query's first tokens, int64, a multiple of `PAGE` long, and how many of these already
            hold keys and values. The forward that computes the others must write them before any later one.
        """
        if not self.caching or not key.pages:
            return np.empty(0, np.int64), 0
        room = len(self._free_pages) + len(self._cached) - len(self._in_use) - self._reserve
        pages: list[int] = []
        hits = 0
        for page_hash in key.pages:
            if page_hash not in self._in_use:
                if room <= 0:
                    break
                room -= 1
                self._in_use.add(page_hash)
            page = self._cached.get(page_hash)
            if page is None:
                page = self._cached[page_hash] = self._take_page()
                self._taken.add(page_hash)
            elif hits == len(pages) and (hits + 1) * PAGE <= max_hit:
                hits += 1
            # Beyond `max_hit` a page that is cached is written again, with the same contents.
            pages.append(page)
        self._queries.append(key.pages[: len(pages)])
        self._mark_used(key.pages[: len(pages)])
        return self.slots_of(pages), hits * PAGE

    def allocate(self, pages: int) -> list[int]:
        """Take pages out of the pool, evicting cached ones if needed, or raise `PoolExhausted`."""
        if pages > len(self._free_pages) + len(self._cached) - len(self._in_use):
            raise PoolExhausted
        return [self._take_page() for _ in range(pages)]

    def free(self, pages: list[int]) -> None:
        self._free_pages.extend(pages)

    def end_batch(self) -> None:
        """End a batch whose forwards are all packed: the next batch may evict what it used."""
        self._in_use = self._read_by_held()
        if self.states is not None:
            self.states.end_batch()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others off the pages of the batch packed last, which is launched in slices inside.

        What the batch reads is not evicted, and what it writes is not found.
        """
        if self.holds:
            raise RuntimeError("two batches would be launched in slices at once")
        self.holds, self._held, self._queries = True, self._queries, []
        self._unwritten = {page_hash: self._cached.pop(page_hash) for page_hash in self._taken}
        self._in_use = self._read_by_held()
        try:
            yield
        finally:
            for pages in self._held:
                self._publish(pages)
            self.holds, self._held = False, []
            self._in_use = set()

    def slots_of(self, pages: Sequence[int]) -> Int64:
        """The slots of pages, in order: int64 [len(pages) * PAGE]."""
        return self._slots.take(np.array(pages, np.int64), axis=0).ravel()

    def _publish(self, pages: Sequence[bytes]) -> None:
        for page_hash in pages:
            page = self._unwritten.pop(page_hash, None)
            if page is not None and self._cached.setdefault(page_hash, page) != page:
                self._free_pages.append(page)  # others have computed the same meanwhile
        self._mark_used(pages)

    def clear(self) -> None:
        """Empty the cache but for a batch that is held, as when a forward failed that should have filled it."""
        self._in_use = self._read_by_held()
        for page_hash in [each for each in self._cached if each not in self._in_use]:
            self._free_pages.append(self._cached.pop(page_hash))
        if self.states is not None:
            self.states.clear()

    def _read_by_held(self) -> set[bytes]:
        return {page_hash for pages in self._held for page_hash in pages if page_hash not in self._unwritten}

    def _mark_used(self, pages: Sequence[bytes]) -> None:
        # The first page becomes the most recently used: a query's end is evicted before its beginning.
        for page_hash in reversed(pages):
            self._cached.move_to_end(page_hash)

    def _take_page(self) -> int:
        if not self._free_pages:
            oldest = next(page_hash for page_hash in self._cached if page_hash not in self._in_use)
            self._free_pages.append(self._cached.pop(oldest))
        return self._free_pages.pop()
