"""What every order of requests knows: who waits, and the sizes that are to be expected.

Pure: knows neither clock nor thread. Sizes and costs are in one unit, tokens for example.
"""

from abc import ABC, abstractmethod
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
EXPECTED_SMALL = 1 / 2
"""Of a full batch: where batches are smaller than that, small requests are to be expected."""


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


class RequestOrder(ABC, Generic[Request]):
    """The requests that wait, with parts of large ones left to launch."""

    def __init__(self, max_cost: int) -> None:
        """Start empty; a batch costs at most `max_cost`, except for one part that costs more by itself."""
        self._max_cost = max_cost
        self._waiting: dict[Request, tuple[int, int]] = {}  # size and number; by arrival
        self._numbers = count()
        self._total = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._alone = 0

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

    @abstractmethod
    def expects_small(self) -> bool:
        """Whether small requests are likely to come, which a batch that is launched would hold up."""

    @abstractmethod
    def fill(self, batch: OpenBatch[Request]) -> None:
        """Fill a batch. What is taken whole waits no more; the rest of what is taken in part does."""

    def fill_between(self, batch: OpenBatch[Request]) -> bool:
        """Fill a batch that runs between two slices with small requests. False: the next slice has its turn."""
        return False

    def _least(self) -> int:
        """The cost at which a batch is full while little waits."""
        small = sorted(self._recent)[SMALL] if len(self._recent) > SMALL else self._max_cost
        least = max(1, int(SMALLEST_BATCH * self._max_cost), SMALL_PER_BATCH * small)
        return min(self._max_cost, least)

    def _put(self, request: Request, size: int) -> None:
        self._total += size
        self._waiting[request] = size, next(self._numbers)

    def _update(self, request: Request, left: int) -> None:
        """A part of a request was taken. Without anything left it waits no more."""
        if left:
            self._total -= self._waiting[request][0]
            self._put(request, left)
        else:
            self.remove(request)
