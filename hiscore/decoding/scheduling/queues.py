"""All sequences by their status."""

import heapq
import math
from itertools import islice

from hiscore.decoding.sequence import Sequence, Status

LOOK_AHEAD = 16
"""Sequences at the front of each queue that are considered in an iteration."""

OrderedSet = dict[Sequence, None]  # by insertion


def by_age(sequence: Sequence) -> float:
    """Return a key that sorts the oldest first; a sequence preempted for another is new again."""
    return sequence.turn.queue_position


class Queues:
    """A queue for each status but FINISHED."""

    def __init__(self) -> None:
        self._of: dict[Status, OrderedSet] = {
            status: {} for status in Status if status is not Status.FINISHED
        }
        self.waiting = self._of[Status.WAITING]
        self.restoring = self._of[Status.RESTORING]
        self.prefilling = self._of[Status.PREFILLING]
        self.admitted = self._of[Status.ADMITTED]
        self.running = self._of[Status.RUNNING]
        self.draining = self._of[Status.DRAINING]
        self.preempted = self._of[Status.PREEMPTED]
        self._queued = 0

    def __bool__(self) -> bool:
        return any(self._of.values())

    @property
    def starting(self) -> list[Sequence]:
        """Sequences that hold what they need, and do not run yet."""
        return [*self.restoring, *self.prefilling, *self.admitted]

    @property
    def active(self) -> list[Sequence]:
        """Sequences that have started and go on."""
        return [*self.starting, *self.running]

    @property
    def front(self) -> list[Sequence]:
        """The first sequences that wait, new or preempted, in order."""
        first = [*islice(self.waiting, LOOK_AHEAD), *heapq.nsmallest(LOOK_AHEAD, self.preempted, key=by_age)]
        return sorted(first, key=by_age)

    def enqueue(self, sequence: Sequence, step: int) -> None:
        """Make a sequence the last of those that wait, from this step on."""
        self._queued += 1
        sequence.turn.queue_position, sequence.turn.waiting_since = self._queued, step

    def put_before(self, sequence: Sequence, other: Sequence) -> None:
        """Put a sequence that waits just before another."""
        sequence.turn.queue_position = math.nextafter(other.turn.queue_position, 0.0)

    def add(self, sequence: Sequence, step: int) -> None:
        self.enqueue(sequence, step)
        self.waiting[sequence] = None

    def move(self, sequence: Sequence, status: Status) -> None:
        del self._of[sequence.status][sequence]
        sequence.status = status
        if status is not Status.FINISHED:
            self._of[status][sequence] = None
