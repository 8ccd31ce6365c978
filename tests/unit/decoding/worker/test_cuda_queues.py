"""CUDA's queues without CUDA: each event is on the stream that was asked for, and events are used again."""

from typing import Any

import pytest
import torch

from hiscore.decoding.worker.cuda_queues import CudaQueues
from hiscore.decoding.worker.device_queues import Queue

IN_FLIGHT = 3


class Made:
    """Streams and events in the place of CUDA's: what was asked of them."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.events = 0

    def stream(self, device: torch.device, priority: int) -> "Stream":
        return Stream(self)

    def event(self) -> "Event":
        self.events += 1
        return Event(self, self.events - 1)


class Stream:
    def __init__(self, made: Made) -> None:
        self.made = made

    def wait_event(self, event: "Event") -> None:
        self.made.log.append(("wait", event.number, self))


class Event:
    def __init__(self, made: Made, number: int) -> None:
        self.made, self.number = made, number

    def record(self, stream: Stream) -> None:
        self.made.log.append(("record", self.number, stream))

    def query(self) -> bool:
        return self.number % 2 == 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    monkeypatch.setattr(torch.cuda, "Stream", made.stream)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    return made


def test_each_call_reaches_its_own_event_and_stream(made: Made) -> None:
    queues = CudaQueues(torch.device("cuda"))
    first, second = queues.event(), queues.event()
    queues.record(first, Queue.COMPUTE)
    queues.record(second, Queue.RESTORE)
    queues.wait(Queue.OFFLOAD, first)
    queues.wait(Queue.COMPUTE, second)
    streams = [queues._streams[queue] for queue in Queue]
    compute, offload, restore = streams
    assert len(set(streams)) == len(Queue)
    assert made.log == [
        ("record", 0, compute), ("record", 1, restore), ("wait", 0, offload), ("wait", 1, compute),
    ]  # fmt: skip
    assert (queues.completed(first), queues.completed(second)) == (True, False)


@pytest.mark.parametrize("gives_back", [True, False])
def test_there_are_as_many_events_as_are_in_flight_at_once(made: Made, gives_back: bool) -> None:
    """The control gives none back."""
    queues, in_flight = CudaQueues(torch.device("cuda")), []
    for _ in range(100):
        in_flight.append(event := queues.event())
        queues.record(event, Queue.OFFLOAD)
        assert len(set(in_flight)) == len(in_flight)
        if gives_back and len(in_flight) == IN_FLIGHT:
            queues.recycle(in_flight.pop(0))
    assert made.events == (IN_FLIGHT if gives_back else 100)
