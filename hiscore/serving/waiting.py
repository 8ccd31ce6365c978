"""The requests that wait: which are admitted, and which come into the next batch.

Knows no thread: its owner makes all calls under one lock.
"""

import math
import time
from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Generic

from hiscore.errors import Code, RequestError
from hiscore.serving.batched_model import BatchedModel, BatchLimits, Job
from hiscore.serving.queued_request import QueuedRequest
from hiscore.serving.totals import Totals

# Before a batch is formed, up to MAX_POLLED of the requests that have waited for POLL_AFTER_S are checked for
# cancellation.
POLL_AFTER_S = 0.1
MAX_POLLED = 16

Dropped = list[tuple[QueuedRequest[Job], RequestError]]


class WaitingRequests(Generic[Job]):
    """First come, first served; jobs of several parts take turns."""

    def __init__(self, model: BatchedModel[Job], limits: BatchLimits, totals: Totals) -> None:
        self._model, self._limits, self._totals = model, limits, totals
        # Requests with parts to launch, those already started included.
        self._waiting: deque[QueuedRequest[Job]] = deque()
        self._not_started = 0
        self._total_cost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, request: QueuedRequest[Job], at_once: bool = False) -> bool:
        """Queue a request, unless there is no room.

        Args:
            request: Its cost is set.
            at_once: It would be launched at once, so it needs no place in the queue.
        """
        room = max(self._limits.max_queue - self._not_started, at_once)
        total_cost = self._total_cost + request.cost
        if room <= 0 or (self._total_cost and total_cost > self._limits.max_total_cost):
            return False
        self._not_started += 1
        self._total_cost = total_cost
        self._waiting.append(request)
        return True

    def release(self, request: QueuedRequest[Job]) -> None:
        """Make the room of an admitted request free: it has been answered."""
        self._total_cost -= request.cost

    def worth_polling(self) -> list[QueuedRequest[Job]]:
        """Those among the first for which it is worth asking whether the caller has gone."""
        # Each check is a round trip to the server: not for requests that are launched as they come.
        since = time.monotonic() - POLL_AFTER_S
        first = islice(self._waiting, MAX_POLLED)
        return [request for request in first if not request.answered and request.since < since]

    def next_batch(
        self, cancelled: Collection[QueuedRequest[Job]]
    ) -> tuple[list[tuple[QueuedRequest[Job], Job]], Dropped[Job]]:
        """Take the next batch: requests and the part of each; and those that are late or cancelled."""
        batch: list[tuple[QueuedRequest[Job], Job]] = []
        dropped: Dropped[Job] = []
        now, room = time.monotonic(), math.inf
        while self._waiting:
            request = self._waiting[0]
            part = request.launched
            if request.answered:
                pass  # an earlier part has failed
            elif request in cancelled:
                dropped.append((request, RequestError("the call was cancelled", Code.CANCELLED)))
                self._totals.rejects["cancelled"] += 1
            elif not part and request.deadline < now:
                late = RequestError("Request timeout expired in the queue", Code.UNAVAILABLE)
                dropped.append((request, late))
                self._totals.rejects["late"] += 1
            else:
                cost = request.cost if len(request.parts) == 1 else self._model.cost(request.parts[part])
                if cost > room:
                    break
                room = (room if batch else self._limits.max_batch_cost) - cost
                batch.append((request, request.parts[part]))
                request.launched += 1
                if not part:
                    self._totals.queue_wait.observe(now - request.since)
            self._waiting.popleft()
            self._not_started -= not part
            if part < request.launched < len(request.parts):
                self._waiting.append(request)
        return batch, dropped
