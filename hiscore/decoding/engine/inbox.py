"""Messages to the engine's thread: new calls, cancellations, the request to close, and the times of deadlines."""

import heapq
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from hiscore.batching.request_order import drop_stale
from hiscore.decoding.sequence import Sequence, Status
from hiscore.errors import Code, RequestError
from hiscore.server.load_board import LoadBoard

# Nothing wakes the engine when an offload completes. With nothing else to do, it polls this often.
POLL_S = 0.0005
# A call that waits is that much more of a load than one that runs, which shares its steps. The weight is that of
# vLLM's balancer over data-parallel engines.
WAITING_LOAD = 4


class Inbox:
    """A bounded, thread-safe queue, in which `startable` calls do not count; a board shows instances' loads."""

    def __init__(self, max_queue: int, startable: int, board: LoadBoard | None = None) -> None:
        self.num_refused = 0
        """Calls refused because the queue was full."""
        self._max_queue, self._board = max_queue, board or LoadBoard()
        self._changed = threading.Condition()  # guards the rest
        self._calls: list[Sequence] = []
        self._cancelled: list[Any] = []
        self._room, self._startable = max_queue + startable, startable
        self._load = 0.0  # without `_calls`
        self._woken = False
        self._closing = False
        self._dead = False

    def put(self, sequence: Sequence) -> None:
        """Add a call; raise RequestError if the queue is full or closing (UNAVAILABLE), or dead (INTERNAL)."""
        with self._changed:
            if self._dead:
                raise RequestError("decode has stopped, see the server's log", Code.INTERNAL)
            if self._closing:
                raise RequestError("the server is shutting down", Code.UNAVAILABLE)
            if self._room <= 0 and not self._board.others_have_room():
                self.num_refused += 1
                raise RequestError(f"the queue is full: {self._max_queue} calls wait", Code.UNAVAILABLE)
            self._room -= 1
            self._calls.append(sequence)
            self._publish_load()
            self._changed.notify_all()

    def wake(self) -> None:
        """Let the engine look again."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def cancel(self, reply_to: Any) -> None:
        with self._changed:
            self._cancelled.append(reply_to)
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further calls; those already added are still taken."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def take(self, idle: bool, poll: bool) -> tuple[list[Sequence], list[Any]] | None:
        """Take new sequences, and each `reply_to` to cancel; return None once nothing will ever come.

        Args:
            idle: The engine holds nothing, so block until something comes.
            poll: The engine only waits for offloads to complete, so block for `POLL_S` at most.
        """
        with self._changed:
            if idle:
                self._changed.wait_for(lambda: self._calls or self._cancelled or self._closing)
            elif poll:
                self._changed.wait_for(lambda: self._calls or self._cancelled or self._woken, POLL_S)
            self._woken = False
            calls, self._calls = self._calls, []
            cancelled, self._cancelled = self._cancelled, []
            if idle and self._closing and not calls:
                return None
        return calls, cancelled

    def update_room(self, waiting: int, startable: int, running: float = 0.0, preempted: int = 0) -> None:
        """Set how many more calls may come, and publish the load.

        Args:
            running: Running calls, and a fraction for the memory that they hold: of two instances that run as
                many, the one with more memory left gets the next call.
            preempted: Preempted calls, which keep places in the queue: otherwise each call that preempts one would
                make room for another, and with ever more of them none would end.
        """
        with self._changed:
            self._room = self._max_queue + startable - waiting - preempted - len(self._calls)
            self._startable, self._load = startable, WAITING_LOAD * waiting + running
            self._publish_load()

    def _publish_load(self) -> None:
        starting = min(len(self._calls), self._startable)
        load = self._load + starting + WAITING_LOAD * (len(self._calls) - starting)
        self._board.publish(load if self._room > 0 else math.inf)

    def fail(self) -> list[Sequence]:
        """Refuse all further calls, and return those that have not been taken."""
        with self._changed:
            self._dead = True
            return self._calls


class Deadlines:
    """Deadlines of all live calls, and of some that have ended, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # with the id of reply_to

    def add(self, sequence: Sequence) -> None:
        for at in _times_of(sequence):
            if at < math.inf:
                self.watch(at, id(sequence.reply_to))

    def watch(self, at: float, key: int) -> None:
        """Look at a call again at a time; `key` is the id of its reply_to."""
        heapq.heappush(self._heap, (at, key))

    def expired(self, now: float, live: Mapping[int, Sequence]) -> Iterator[tuple[Sequence, RequestError]]:
        """Yield late calls with their errors; `live` has the sequences by the id of reply_to."""
        while self._heap and self._heap[0][0] <= now:
            sequence = live.get(heapq.heappop(self._heap)[1])
            if sequence is None:
                continue
            # Checked again: the id may have been that of another sequence, which is gone.
            waiting, call = sequence.status is Status.WAITING, sequence.call
            if call.deadline <= now or (waiting and call.start_by <= now):
                where = f"after {sequence.num_output_tokens} of at most {call.params.max_tokens} tokens"
                where = "in the queue" if waiting else where
                yield sequence, RequestError(f"Request timeout expired {where}", Code.UNAVAILABLE)
        # Most calls end long before.
        drop_stale(self._heap, lambda entry: _is_of_one(entry, live), 2 * len(live))


def _times_of(sequence: Sequence) -> tuple[float, float]:
    return sequence.call.deadline, sequence.call.start_by


def _is_of_one(entry: tuple[float, int], live: Mapping[int, Sequence]) -> bool:
    """Return whether a time is that of a live call; its id alone may have been that of many others."""
    at, key = entry
    return key in live and at in _times_of(live[key])
