"""Whose turn it is: in turns, most of a batch is for those that came first, or all of it for the small ones.

Small ones have turns of their own, so that they are held up neither by the large ones before them nor by a part of
one in their batch. The oldest goes on in every second batch at least, whatever comes later, so that no request
starves. A large request takes part of a batch at a time.

A batch that computes holds up whoever comes next. So batches are small while small requests are about, and large
where no small one is to be expected or much waits: see `QueueOrder.limit`.

Pure: knows neither clock nor thread. Sizes and costs are in one unit, tokens for example.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Generic, Protocol, TypeVar

Request = TypeVar("Request")
Taken = TypeVar("Taken", contravariant=True)

# Chosen by simulation, see tests/support/batch_simulator.py.
RECENT = 64
"""Requests whose sizes say what is to be expected: the last that came while others waited or ran."""
SMALL = RECENT // 8
"""The smallest of these do not count: a probe now and then makes no batch small."""
FORGET_AFTER = 8
"""One of them is forgotten after so many requests that came alone."""
SMALL_PER_BATCH = 8
"""Small requests that a batch holds while little waits."""
SMALLEST_BATCH = 11 / 128
"""Of a full one, at least: smaller batches would mostly pay for the start of a forward."""
BEHIND = 1 / 8
"""Of a full batch: of what waits beyond that, a batch holds `OF_BEHIND` more."""
OF_BEHIND = 11 / 32
EXPECTED_SMALL = 1 / 2
"""Of a full batch: where batches are smaller than that, small requests are to be expected."""
SHARE_OF_OLDEST = 11 / 16
SHARE_BETWEEN = 31 / 32
"""The same, between turns of the small ones."""


class OpenBatch(Protocol[Taken]):
    """A batch that is being formed."""

    def price(self, request: Taken) -> int:
        """What all that is left of a request would cost in this batch."""
        ...

    def take(self, request: Taken, room: int, at_least_one: bool = False) -> tuple[int, int] | None:
        """Take the next part of a request: all that is left, or as much as costs no more than `room`.

        Returns:
            Its cost, and the size of what is left then; None if no part is as small as that. With `at_least_one`
            the smallest part is taken in this case.
        """
        ...


class QueueOrder(Generic[Request]):
    """The requests that wait, with parts of large ones left to launch."""

    def __init__(self, max_cost: int) -> None:
        """Start empty; a batch costs at most `max_cost`, except for one part that costs more by itself."""
        self._max_cost = max_cost
        self._waiting: dict[Request, tuple[int, int]] = {}  # size and number; by arrival
        self._by_size: list[tuple[int, int, Request]] = []  # a heap; entries may be out of date
        self._numbers = count()
        self._total = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._alone = 0
        self._small_next = False  # the last batch was for the oldest
        self._shortest_next = False  # and they left the others nothing of it

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting

    def __iter__(self) -> Iterator[Request]:
        """The requests, oldest first."""
        return iter(self._waiting)

    def add(self, request: Request, size: int, contended: bool) -> None:
        """Queue a request that has arrived; `contended`: while others waited or ran."""
        if contended:
            self._recent.append(size)
        else:
            self._alone += 1
            if self._alone % FORGET_AFTER == 0 and self._recent:
                self._recent.popleft()
        self._put(request, size)

    def remove(self, request: Request) -> None:
        """Forget a request, if it waits."""
        self._total -= self._waiting.pop(request, (0, 0))[0]

    def limit(self) -> int:
        """The cost at which a batch is full: a few small requests, or more if much waits."""
        behind = max(0, self._total - int(BEHIND * self._max_cost))
        return min(self._max_cost, self._least() + int(OF_BEHIND * behind))

    def expects_small(self) -> bool:
        """Whether small requests are likely to come, which a batch that is launched would hold up."""
        return self.limit() < EXPECTED_SMALL * self._max_cost

    def fill(self, batch: OpenBatch[Request]) -> None:
        """Fill a batch. What is taken whole waits no more; the rest of what is taken in part does."""
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

    def _least(self) -> int:
        """The cost at which a batch is full while little waits."""
        small = sorted(self._recent)[SMALL] if len(self._recent) > SMALL else self._max_cost
        least = max(1, int(SMALLEST_BATCH * self._max_cost), SMALL_PER_BATCH * small)
        return min(self._max_cost, least)

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
        number = next(self._numbers)
        self._total += size
        self._waiting[request] = size, number
        heapq.heappush(self._by_size, (size, number, request))

    def _update(self, request: Request, left: int) -> None:
        """A part of a request was taken. Without anything left it waits no more."""
        if left:
            self._total -= self._waiting[request][0]
            self._put(request, left)
        else:
            self.remove(request)

    def _shortest(self) -> Request | None:
        if len(self._by_size) > 2 * len(self._waiting) + RECENT:
            self._by_size = [(size, number, request) for request, (size, number) in self._waiting.items()]
            heapq.heapify(self._by_size)
        while self._by_size:
            size, number, request = self._by_size[0]
            if self._waiting.get(request) == (size, number):
                return request
            heapq.heappop(self._by_size)
        return None
