"""Any `Streams` with one of its waits, queries or records left out."""

from collections import Counter

from hiscore.decoding.worker.device_queues import Event, Lane

Kind = tuple[str, str, str]
"""What the schedule was doing ("step"), the call ("wait") and its lane, "" where it has none."""


class Mutated:
    """A mixin before a `Streams` class: counts its calls and leaves out those of one kind.

    drop: the kind; only: which of its calls (0 is the first), None for all.
    """

    drop: Kind | None = None
    only: int | None = None
    during = "nothing"

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.calls: Counter[Kind] = Counter()

    def _dropped(self, call: str, lane: str = "") -> bool:
        kind = (self.during, call, lane)
        self.calls[kind] += 1
        return kind == self.drop and self.only in (None, self.calls[kind] - 1)

    def record(self, event: Event, lane: Lane) -> None:
        if not self._dropped("record", lane.value):
            super().record(event, lane)

    def wait(self, lane: Lane, event: Event) -> None:
        if not self._dropped("wait", lane.value):
            super().wait(lane, event)

    def happened(self, event: Event) -> bool:
        return self._dropped("happened") or super().happened(event)

    def block(self, event: Event) -> None:
        if not self._dropped("block"):
            super().block(event)
