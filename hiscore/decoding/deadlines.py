"""When calls must have left the queue, and when they must have ended."""

import heapq
import math
from collections.abc import Iterator, Mapping

from hiscore.decoding.sequence import Sequence, Status
from hiscore.errors import Code, RequestError
from hiscore.serving.request_order import drop_stale


class Deadlines:
    """The times of all calls, in seconds of the monotonic clock, and some of calls that have ended."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []  # with the id of reply_to

    def add(self, sequence: Sequence) -> None:
        """Watch a new call."""
        for at in _times_of(sequence):
            if at < math.inf:
                self.watch(at, id(sequence.reply_to))

    def watch(self, at: float, key: int) -> None:
        """Look at a call again at a time. key: the id of its reply_to."""
        heapq.heappush(self._heap, (at, key))

    def expired(self, now: float, live: Mapping[int, Sequence]) -> Iterator[tuple[Sequence, RequestError]]:
        """Calls that are late, with their errors. live: sequences by the id of reply_to."""
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
    """Whether a time is one of a call that has not ended; the id alone may have been that of many others."""
    at, key = entry
    return key in live and at in _times_of(live[key])
