"""The two queues of work of a device, and the events between them.

What is launched in a lane runs in that lane's order. Lanes run beside each other, but for what `wait` says. The
rules for events are those of CUDA: a wait is for what was recorded when the wait was issued, and a wait for an
event in which nothing was recorded is none. So an event may be recorded anew as soon as all waits for it have
been issued.
"""

from collections.abc import Callable
from enum import Enum
from typing import NewType, Protocol

Work = Callable[[], None]
"""Launches kernels and copies into the lane in which it is called; waits for nothing."""

Event = NewType("Event", int)
"""An event's number in the pool of its `Streams`."""


class Lane(Enum):
    """FORWARD: prefills, seeds, decode steps. BACKUP: copies to the host."""

    FORWARD = "forward"
    BACKUP = "backup"


class Streams(Protocol):
    """Lanes and a pool of events. Only `block` makes the host wait."""

    def launch(self, lane: Lane, work: Work) -> None:
        """Call `work`, with all that it launches going to the end of the lane."""
        ...

    def event(self) -> Event:
        """An event that nobody uses, from the pool."""
        ...

    def recycle(self, event: Event) -> None:
        """Give an event back: no further wait, query or record will name it."""
        ...

    def record(self, event: Event, lane: Lane) -> None:
        """The event happens when all that the lane holds now has ended."""
        ...

    def wait(self, lane: Lane, event: Event) -> None:
        """What the lane is given from now on runs after the event."""
        ...

    def happened(self, event: Event) -> bool:
        """Whether the event has happened; never waits."""
        ...

    def block(self, event: Event) -> None:
        """The host waits for the event."""
        ...


class ImmediateStreams:
    """`Streams` for the CPU: work has ended when its launch returns, so there is nothing to wait for."""

    def launch(self, lane: Lane, work: Work) -> None:
        work()

    def event(self) -> Event:
        return Event(0)

    def recycle(self, event: Event) -> None:
        pass

    def record(self, event: Event, lane: Lane) -> None:
        pass

    def wait(self, lane: Lane, event: Event) -> None:
        pass

    def happened(self, event: Event) -> bool:
        return True

    def block(self, event: Event) -> None:
        pass
