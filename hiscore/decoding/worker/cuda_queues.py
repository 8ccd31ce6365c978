"""`Streams` on a CUDA device."""

import torch

from hiscore.decoding.worker.device_queues import Event, Lane, Work


class CudaStreams:
    """Two CUDA streams and a pool of events, which grows to what is in flight at once and no further.

    The caching allocator knows nothing of waits: memory that one lane allocates and the other reads must be held
    until the reader has ended, or be told of it by `Tensor.record_stream`.
    """

    def __init__(self, device: torch.device, forward: torch.cuda.Stream | None = None) -> None:
        """`forward`: the stream of Lane.FORWARD, a new one by default.

        The new stream has the higher priority: copies fill what forwards leave idle.
        """
        self._streams = {
            Lane.FORWARD: forward or torch.cuda.Stream(device, priority=-1),
            Lane.BACKUP: torch.cuda.Stream(device, priority=0),
        }
        self._events: list[torch.cuda.Event] = []
        self._free: list[Event] = []

    def __getitem__(self, lane: Lane) -> torch.cuda.Stream:
        return self._streams[lane]

    def launch(self, lane: Lane, work: Work) -> None:
        with torch.cuda.stream(self._streams[lane]):
            work()

    def event(self) -> Event:
        if self._free:
            return self._free.pop()
        self._events.append(torch.cuda.Event())
        return Event(len(self._events) - 1)

    def recycle(self, event: Event) -> None:
        self._free.append(event)

    def record(self, event: Event, lane: Lane) -> None:
        self._events[event].record(self._streams[lane])

    def wait(self, lane: Lane, event: Event) -> None:
        self._streams[lane].wait_event(self._events[event])

    def happened(self, event: Event) -> bool:
        return bool(self._events[event].query())

    def block(self, event: Event) -> None:
        self._events[event].synchronize()
