"""Bookkeeping of the pool's states: those of cached queries, between two chunks of each.

A state stands for all tokens before it. One is kept for each query, at its last chunk's end, and one where a query
leaves the beginning that it shares with an earlier one: the next query with that beginning finds it.
"""

from collections import OrderedDict

from hiscore.recurrence.metadata import CHUNK, FIRST_CACHED_SLOT
from hiscore.scoring.requests.query_key import PAGE, QueryKey


class StateCache:
    """Allocates the slots of a pool of states; a batch finds only what batches before it have left."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, FIRST_CACHED_SLOT - 1, -1))
        self._cached: OrderedDict[bytes, int] = (
            OrderedDict()
        )  # slot by hash of the last page, least recently used first
        self._in_use: set[bytes] = set()  # read by the batch that is being packed
        self._new: dict[bytes, int] = {}  # written by it

    def find(self, key: QueryKey, most: int) -> int:
        """Count a query's first tokens, at most `most`, at whose end a state is cached; 0: there is none."""
        ends = range(most // CHUNK * CHUNK, 0, -CHUNK)
        return next((end for end in ends if _hash(key, end) in self._cached), 0)

    def use(self, key: QueryKey, end: int) -> int:
        """The slot of a cached state, which the batch that is being packed begins with."""
        self._in_use.add(_hash(key, end))
        self._cached.move_to_end(_hash(key, end))
        return self._cached[_hash(key, end)]

    def keep(self, key: QueryKey, end: int) -> int | None:
        """Take a slot for the state behind a query's first tokens; None: it is kept, or there is no room."""
        page_hash = _hash(key, end)
        if page_hash in self._cached or page_hash in self._new:
            return None
        if not self._free:
            oldest = next((each for each in self._cached if each not in self._in_use), None)
            if oldest is None:
                return None
            self._free.append(self._cached.pop(oldest))
        self._new[page_hash] = self._free.pop()
        return self._new[page_hash]

    def end_batch(self) -> None:
        """End a batch whose forwards are all packed: what they leave can be found."""
        self._cached.update(self._new)
        self._new, self._in_use = {}, set()

    def clear(self) -> None:
        """Empty the cache, as when a forward failed that should have filled it."""
        self.end_batch()
        self._free += self._cached.values()
        self._cached.clear()


def _hash(key: QueryKey, end: int) -> bytes:
    return key.pages[end // PAGE - 1]
