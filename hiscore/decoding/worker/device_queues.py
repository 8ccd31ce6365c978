"""The work queues of a device and the events between them.

Work launched on a queue runs in the order of its launches. The queues run side by side, except for what `wait`
orders. Events follow CUDA's rules: a wait is for the last recording before the wait was issued, and a wait for
an event that was never recorded does nothing. So an event may be recorded again as soon as all waits for it
have been issued.
"""

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, NewType, Protocol

Event = NewType("Event", int)
"""An event's number in the pool of its `DeviceQueues`."""


class Queue(Enum):
    """COMPUTE: prefills, decode steps, everything else that forwards need. OFFLOAD: copies to the host. RESTORE:
    copies of sequences from there.
    """

    COMPUTE = "compute"
    OFFLOAD = "offload"
    RESTORE = "restore"


class DeviceQueues(Protocol):
    """The queues and a pool of events. Only `block` makes the host wait."""

    def use(self, queue: Queue) -> AbstractContextManager[Any]:
        """Launch everything inside the context on this queue."""
        ...

    def event(self) -> Event:
        """Take an unused event from the pool."""
        ...

    def recycle(self, event: Event) -> None:
        """Return an event to the pool; its holder must not wait for, query or record it again."""
        ...

    def record(self, event: Event, queue: Queue) -> None:
        """Complete the event when all work launched on the queue so far has completed."""
        ...

    def wait(self, queue: Queue, event: Event) -> None:
        """Run what is launched on the queue from now on after the event."""
        ...

    def completed(self, event: Event) -> bool:
        """Return whether the event has completed; never waits."""
        ...


class ImmediateQueues:
    """`DeviceQueues` for the CPU: work has completed when its launch returns, so nothing ever waits."""

    def use(self, queue: Queue) -> AbstractContextManager[Any]:
        return nullcontext()

    def event(self) -> Event:
        return Event(0)

    def recycle(self, event: Event) -> None:
        pass

    def record(self, event: Event, queue: Queue) -> None:
        pass

    def wait(self, queue: Queue, event: Event) -> None:
        pass

    def completed(self, event: Event) -> bool:
        return True
