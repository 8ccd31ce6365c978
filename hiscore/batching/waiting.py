"""The requests that wait: their admission, and their way into the next batch."""

import heapq
import math
import time
from collections.abc import Collection
from itertools import count, islice
from typing import Generic

from hiscore.batching.batched_model import BatchedModel, BatchLimits, Job, QueuedRequest
from hiscore.batching.request_order import OpenBatch, RequestOrder, drop_stale
from hiscore.batching.totals import Totals
from hiscore.errors import Code, RequestError
from hiscore.server.load_board import LoadBoard

# Before a batch is formed, up to MAX_POLLED of the requests that have waited for POLL_AFTER_S are checked for
# cancellation.
POLL_AFTER_S = 0.1
MAX_POLLED = 16

Dropped = list[tuple[QueuedRequest[Job], RequestError]]


class WaitingRequests(Generic[Job]):
    """Requests with parts to launch, those already started included."""

    def __init__(
        self, model: BatchedModel[Job], limits: BatchLimits, totals: Totals, board: LoadBoard
    ) -> None:
        self._model, self._limits, self._totals, self._board = model, limits, totals, board
        self._order: RequestOrder[Job] = RequestOrder(limits.max_batch_cost, model.between)
        self._deadlines: list[tuple[float, int, QueuedRequest[Job]]] = []  # a heap
        self._numbers = count()
        self._not_started = 0
        self._total_cost = 0
        self.alone = 0

    def __len__(self) -> int:
        return len(self._order)

    def admit(self, request: QueuedRequest[Job], size: int, at_once: bool, busy: bool) -> bool:
        """Queue a request of expected cost `size`, unless there is no room in any instance of the model.

        A request that is launched `at_once` needs no place in the queue; `busy` says that something is being
        computed.
        """
        room = max(self._limits.max_queue - self._not_started, at_once)
        others = self._total_cost + self.alone
        full = room <= 0 or (others and others + request.cost > self._limits.max_total_cost)
        if full and not self._board.others_have_room():
            return False
        self._not_started += 1
        self._total_cost += request.cost
        self._order.add(request, size, contended=busy or len(self._order) > 0)
        # Behind one that waits, those with later deadlines stay when they have started.
        drop_stale(self._deadlines, lambda entry: self._has_to_start(entry[2]), self._not_started)
        heapq.heappush(self._deadlines, (request.deadline, next(self._numbers), request))
        self.publish_load()
        return True

    def answered(self, request: QueuedRequest[Job]) -> None:
        """Free the room of an admitted request, and drop its parts that still wait."""
        self._total_cost -= request.cost
        self._order.remove(request)
        self.publish_load()

    def publish_load(self) -> None:
        """Tell the other instances the cost of all that waits or is being computed."""
        limits = self._limits
        full = self._not_started >= limits.max_queue or self._total_cost >= limits.max_total_cost
        self._board.publish(math.inf if full else self._total_cost + self.alone)

    def expects_small(self) -> bool:
        """Tell whether a batch is better formed as late as possible."""
        return self._order.expects_small()

    def worth_polling(self) -> list[QueuedRequest[Job]]:
        """Choose the requests among the oldest whose callers are worth asking whether they have gone."""
        # Each check is a round trip to the server: not for requests that are launched as they come.
        since = time.monotonic() - POLL_AFTER_S
        return [request for request in islice(self._order, MAX_POLLED) if request.since < since]

    def next_batch(
        self, cancelled: Collection[QueuedRequest[Job]], between: bool = False
    ) -> tuple[list[tuple[QueuedRequest[Job], Job]], int, Dropped[Job]]:
        """Take the next batch: requests with a part of each, its cost; and those that are late or cancelled.

        Between two slices of another batch, no request is taken if it is the next slice's turn.
        """
        now = time.monotonic()
        dropped: Dropped[Job] = []
        for request in cancelled:
            self._drop(request, "cancelled", RequestError("the call was cancelled", Code.CANCELLED), dropped)
        while self._deadlines and (
            self._deadlines[0][0] < now or not self._has_to_start(self._deadlines[0][2])
        ):
            request = heapq.heappop(self._deadlines)[2]
            if self._has_to_start(request):
                late = RequestError("Request timeout expired in the queue", Code.UNAVAILABLE)
                self._drop(request, "late", late, dropped)
        batch = OpenBatch(self._model.plan())
        if between:
            self._order.fill_between(batch)
        else:
            self._order.fill(batch)
        for request in batch.started:
            self._not_started -= 1
            self._totals.queue_wait.observe(now - request.since)
        self.publish_load()
        return batch.parts, batch.cost, dropped

    def _has_to_start(self, request: QueuedRequest[Job]) -> bool:
        return not request.launched and request in self._order

    def _drop(
        self, request: QueuedRequest[Job], reason: str, error: RequestError, dropped: Dropped[Job]
    ) -> None:
        if request in self._order:
            self._order.remove(request)
            self._not_started -= not request.launched
            self._totals.rejects[reason] += 1
            dropped.append((request, error))
