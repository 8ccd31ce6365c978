"""Whose turn it is where batches are launched as a whole: most of one is for those that came first, or, in turns,
all of it for the small ones.

Small ones have turns of their own, so that they are held up neither by the large ones before them nor by a part of
one in their batch. The oldest goes on in every second batch at least, whatever comes later, so that no request
starves. A large request takes part of a batch at a time.

A batch that computes holds up whoever comes next. So batches are small while small requests are about, and large
where no small one is to be expected or much waits: see `QueueOrder.limit`.

Pure: knows neither clock nor thread. Sizes and costs are in one unit, tokens for example.
"""

import heapq

from hiscore.serving.request_order import EXPECTED_SMALL, OpenBatch, Request, RequestOrder
from hiscore.serving.stale_entries import drop_stale

# Chosen by simulation, see tests/support/batch_simulator.py.
BEHIND = 1 / 8
"""Of a full batch: of what waits beyond that, a batch holds `OF_BEHIND` more."""
OF_BEHIND = 11 / 32
SHARE_OF_OLDEST = 11 / 16
SHARE_BETWEEN = 31 / 32
"""The same, between turns of the small ones."""


class QueueOrder(RequestOrder[Request]):
    """The requests that wait for a model that launches batches as a whole."""

    def __init__(self, max_cost: int) -> None:
        super().__init__(max_cost)
        self._by_size: list[tuple[int, int, Request]] = []  # a heap; entries may be out of date
        self._small_next = False  # the last batch was for the oldest
        self._shortest_next = False  # and they left the others nothing of it

    def limit(self) -> int:
        """The cost at which a batch is full: a few small requests, or more if much waits."""
        behind = max(0, self._total - int(BEHIND * self._max_cost))
        return min(self._max_cost, self._least() + int(OF_BEHIND * behind))

    def expects_small(self) -> bool:
        return self.limit() < EXPECTED_SMALL * self._max_cost

    def fill(self, batch: OpenBatch[Request]) -> None:
        limit = self.limit()
        share = max(1, int((SHARE_BETWEEN if self.expects_small() else SHARE_OF_OLDEST) * limit))
        if self._small_next:
            self._small_next = False
            # A small one leaves room for another in the smallest batch.
            if self._take_shortest(batch, 0, limit, share, at_most=self._least() // 2):
                self._shortest_next = False  # two turns in a row would hold up the oldest
                return
        if self._shortest_next and self._take_shortest(batch, 0, limit, share):
            self._shortest_next = False
            return
        used = self._take_oldest(batch, limit, share)
        if used > limit:
            # One that cannot be divided: the shortest have their share all the same, if all fits a batch.
            limit = min(self._max_cost, used + int((1 - SHARE_OF_OLDEST) * limit))
        taken = self._take_shortest(batch, used, limit, share)
        self._shortest_next = used > share and not taken and len(self._waiting) > 1
        self._small_next = self.expects_small()

    def _take_shortest(
        self, batch: OpenBatch[Request], used: int, limit: int, share: int, at_most: int | None = None
    ) -> int:
        """Take the shortest until the batch is full, the last of them in part if it is large. Returns how many.

        The first goes along if it would fit a batch by itself, however much the oldest took. With `at_most` only
        those that cost no more are taken, and whole.
        """
        requests = 0
        while used < limit and (request := self._shortest()) is not None:
            price, room = batch.price(request), limit - used
            if at_most is not None and price > min(at_most, room):
                break
            if not requests and price <= limit:
                room = max(room, min(price, self._max_cost - used))
            taken = batch.take(request, room) if price <= room or price > share else None
            if taken is None:
                break
            requests += 1
            used += taken[0]
            self._update(request, taken[1])
            if taken[1]:
                break
        return requests

    def _take_oldest(self, batch: OpenBatch[Request], limit: int, share: int) -> int:
        """Take the oldest until their share is full, the last of them in part if need be. Returns the cost."""
        used = 0
        for request, (size, _) in list(self._waiting.items()):
            room = share - used
            price = batch.price(request)
            if price > room:
                # The rest of the batch as well, if those behind it are too few to fill it.
                others = self._total - size
                room = limit - used if price <= share else max(room, limit - used - others)
            taken = batch.take(request, room, at_least_one=not used)
            if taken is None:
                break
            used += taken[0]
            self._update(request, taken[1])
            if taken[1] or used >= share:
                break
        return used

    def _put(self, request: Request, size: int) -> None:
        super()._put(request, size)
        # Not where it is read: where the oldest fill every batch, the shortest are never asked for.
        drop_stale(self._by_size, self._is_current, len(self._waiting))
        heapq.heappush(self._by_size, (*self._waiting[request], request))

    def _shortest(self) -> Request | None:
        while self._by_size:
            if self._is_current(self._by_size[0]):
                return self._by_size[0][2]
            heapq.heappop(self._by_size)
        return None

    def _is_current(self, entry: tuple[int, int, Request]) -> bool:
        size, number, request = entry
        return self._waiting.get(request) == (size, number)
