"""The order in which waiting requests are launched: small and large ones take turns.

Where a model launches large batches in slices, a batch of small requests may run between two of them: a newcomer
waits for a slice at most, and a large request is computed whole. Elsewhere a batch is one slice, and a large
request is divided while small ones are expected. Turns alternate also while a batch in slices is open, and the
oldest request of each kind goes first in its turn, so none starves. Small requests that would fill several batches
get full ones.

Sizes and costs are in one unit, tokens for example.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from hiscore.batching.batched_model import BatchPlan, Job, QueuedRequest

Entry = TypeVar("Entry", bound=tuple[Any, ...])

# All shares are of a full batch, chosen by simulation: perf/results/notebook/2026-11-23-short-among-long.md.
RECENT = 64
"""Requests whose sizes tell which to expect: the last that came while others waited or ran."""
PROBES = RECENT // 8
"""The smallest of these are ignored: a probe now and then makes no batch small."""
FORGET_AFTER = 8
"""One recent request is forgotten after so many that came alone."""
SMALL_PER_BATCH = 8
"""Requests of the expected size that fill a batch while little waits."""
SMALLEST_BATCH = 11 / 128
"""The smallest batch that counts as full: a smaller one would mostly pay for the start of a forward."""
EXPECTED_SMALL = 1 / 2
"""Small requests are expected if fewer than this share fills a batch."""
MANY = 4
"""Small requests get full batches if more than so many of their own batches wait."""
LARGE = 3 / 8
"""The share that large requests get in slices while small ones are expected."""
SMALL, PART, OF_WAITING = 1 / 32, 1 / 8, 1 / 2
"""Without slices: the largest small request; a batch of small ones, or of large ones in parts while small ones are
expected, which grows to this share of all that waits."""
SPARE = 64
"""Entries of a heap that is too small to be cleaned."""


class OpenBatch(Generic[Job]):
    """A batch that is being formed: requests with the part that it takes of each."""

    def __init__(self, plan: BatchPlan[Job]) -> None:
        self._plan = plan
        self.parts: list[tuple[QueuedRequest[Job], Job]] = []
        self.started: list[QueuedRequest[Job]] = []
        self.cost = 0

    def price(self, request: QueuedRequest[Job]) -> int:
        """Return the cost of all that is left of a request in this batch."""
        return self._plan.price(request.job, request.done or 0)

    def take(
        self, request: QueuedRequest[Job], room: int, at_least_one: bool = False
    ) -> tuple[int, int] | None:
        """Take the next part of a request, as `BatchPlan.take`; return its cost and the size of what is left."""
        part = self._plan.take(request.job, request.done or 0, room, at_least_one)
        if part is None:
            return None
        if not request.launched:
            self.started.append(request)
        request.launched += 1
        self.cost += part.cost
        request.done = part.done
        self.parts.append((request, part.job))
        return part.cost, 0 if part.done is None else max(1, part.left)


class RequestOrder(Generic[Job]):
    """The requests that wait, those with parts left to launch included."""

    def __init__(self, max_cost: int, between: int = 0) -> None:
        """Start empty, for batches of `max_cost`, and of `between` between two slices; 0: no slices."""
        self._max_cost = max_cost
        self._in_slices = between > 0
        self._small = between or max(1, int(SMALL * max_cost))
        self._small_batch = between or max(1, int(PART * max_cost))
        self._waiting: dict[QueuedRequest[Job], int] = {}  # sizes, oldest first
        self._total = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self._alone = 0
        self._turn_of_small = True
        self._divided: QueuedRequest[Job] | None = None  # the last of which a part was taken

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: QueuedRequest[Job]) -> bool:
        return request in self._waiting

    def __iter__(self) -> Iterator[QueuedRequest[Job]]:
        return iter(self._waiting)

    def add(self, request: QueuedRequest[Job], size: int, contended: bool) -> None:
        """Queue a request that has arrived, `contended` if others waited or ran."""
        if contended:
            self._recent.append(size)
        else:
            self._alone += 1
            if self._alone % FORGET_AFTER == 0 and self._recent:
                self._recent.popleft()
        self._update(request, size)

    def remove(self, request: QueuedRequest[Job]) -> None:
        self._total -= self._waiting.pop(request, 0)
        if request == self._divided:
            self._divided = None

    def expects_small(self) -> bool:
        """Tell whether small requests are likely to come, which a launched batch would hold up."""
        return self._least() < EXPECTED_SMALL * self._max_cost

    def fill_between(self, batch: OpenBatch[Job]) -> bool:
        """Fill a batch between two slices with small requests, or return False: it is the next slice's turn."""
        small, _ = self._kinds()
        taken = self._turn_of_small and not self._are_many(small) and self._take_small(small, batch)
        self._turn_of_small = not taken
        return taken

    def fill(self, batch: OpenBatch[Job]) -> None:
        """Fill a batch. A request taken in part keeps its place in the queue."""
        small, large = self._kinds()
        if self._turn_of_small and (
            self._take(small, batch, self._max_cost, self._max_cost)
            if self._are_many(small)
            else self._take_small(small, batch)
        ):
            self._turn_of_small = False
            return
        self._turn_of_small = True
        requests, limit, most = list(self), self._max_cost, self._max_cost
        if large and self.expects_small():
            requests, limit = large, self._limit_of_large()
            most = most if self._in_slices else limit
        if requests[:1] == [self._divided]:
            requests = self._with_turns(requests)
        self._divided = None
        self._take(requests, batch, limit, most)

    def _least(self) -> int:
        """The cost at which a batch is full while little waits."""
        expected = sorted(self._recent)[PROBES] if len(self._recent) > PROBES else self._max_cost
        least = max(1, int(SMALLEST_BATCH * self._max_cost), SMALL_PER_BATCH * expected)
        return min(self._max_cost, least)

    def _limit_of_large(self) -> int:
        if self._in_slices:
            return int(LARGE * self._max_cost)
        wanted = max(self._small_batch, self._least(), int(OF_WAITING * self._total))
        return min(self._max_cost, wanted)

    def _kinds(self) -> tuple[list[QueuedRequest[Job]], list[QueuedRequest[Job]]]:
        """Split the requests into small and large ones, oldest first.

        The rest of a divided one counts as large: the part before may have slices left, and parts end in order.
        """
        kinds: tuple[list[QueuedRequest[Job]], list[QueuedRequest[Job]]] = [], []
        for request, size in self._waiting.items():
            kinds[size > self._small or request == self._divided].append(request)
        return kinds

    def _are_many(self, small: Sequence[QueuedRequest[Job]]) -> bool:
        return sum(self._waiting[request] for request in small) > MANY * self._small_batch

    def _with_turns(self, requests: Sequence[QueuedRequest[Job]]) -> list[QueuedRequest[Job]]:
        """Move a divided first request that still fits no batch behind those that do."""
        first, *others = requests
        if self._waiting[first] <= self._max_cost:
            return [first, *others]
        fitting = [request for request in others if self._waiting[request] <= self._max_cost]
        return [*fitting, first, *(request for request in others if self._waiting[request] > self._max_cost)]

    def _take_small(self, small: Sequence[QueuedRequest[Job]], batch: OpenBatch[Job]) -> bool:
        """Take the oldest, then the smallest, whole, until the next does not fit their batch."""
        used, taken = 0, False
        for request in [*small[:1], *sorted(small[1:], key=self._waiting.__getitem__)]:
            price = batch.price(request)
            if price > self._small_batch:
                self._update(request, price)  # the query that it shared when it came is gone
            elif used + price > self._small_batch:
                break
            else:
                batch.take(request, price)
                self.remove(request)
                used, taken = used + price, True
        return taken

    def _take(
        self, requests: Sequence[QueuedRequest[Job]], batch: OpenBatch[Job], limit: int, most: int
    ) -> bool:
        """Take whole requests in order until the next exceeds `limit`; divide one that costs more than `most`."""
        used = 0
        for request in requests:
            price = batch.price(request)
            if used and used + price > limit:
                break
            room = limit if price > most else most - used
            taken = batch.take(request, room, at_least_one=not used)
            if taken is None:
                break
            used += taken[0]
            if taken[1]:
                self._update(request, taken[1])
                self._divided = request
                break
            self.remove(request)
        return bool(requests)

    def _update(self, request: QueuedRequest[Job], size: int) -> None:
        self._total += size - self._waiting.get(request, 0)
        self._waiting[request] = size


def drop_stale(heap: list[Entry], is_current: Callable[[Entry], bool], current: int) -> None:
    """Drop the outdated entries of a heap in place, if they outnumber the others, which are at most `current`.

    Otherwise a heap from which only the least entry is taken grows for as long as that entry stays.
    """
    if len(heap) > 2 * current + SPARE:
        heap[:] = filter(is_current, heap)
        heapq.heapify(heap)
