"""A `DeviceQueues` with one kind of its waits, queries or records left out."""

from collections import Counter

from hiscore.decoding.worker.device_queues import Event, Queue

Kind = tuple[str, str, str]
"""What the worker was doing ("step"), the call ("wait") and its queue, "" if it has none."""


class Mutated:
    """A mixin before a `DeviceQueues` class: counts its calls and leaves out those of one kind.

    drop: the kind; only: which of its calls (0 is the first), None for all.
    """

    drop: Kind | None = None
    only: int | None = None
    during = "nothing"

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.calls: Counter[Kind] = Counter()

    def _dropped(self, call: str, queue: str = "") -> bool:
        kind = (self.during, call, queue)
        self.calls[kind] += 1
        return kind == self.drop and self.only in (None, self.calls[kind] - 1)

    def record(self, event: Event, queue: Queue) -> None:
        if not self._dropped("record", queue.value):
            super().record(event, queue)

    def wait(self, queue: Queue, event: Event) -> None:
        if not self._dropped("wait", queue.value):
            super().wait(queue, event)

    def completed(self, event: Event) -> bool:
        return self._dropped("completed") or super().completed(event)
