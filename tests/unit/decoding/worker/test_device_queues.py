"""CUDA's queues without CUDA: each event is on the stream that was asked for."""

from typing import Any

import pytest
import torch

from hiscore.decoding.worker.device_queues import CudaQueues, Queue


class Stream:
    """A stream or an event in the place of CUDA's; `log` has what was asked of all."""

    log: list[tuple[Any, ...]]

    def __init__(self, *_: object, priority: int = 0) -> None:
        self.priority, self.completes = priority, False

    def wait_event(self, event: "Stream") -> None:
        self.log.append(("wait", self, event))

    def record(self, stream: "Stream") -> None:
        self.log.append(("record", self, stream))

    def query(self) -> bool:
        return self.completes


def test_each_call_reaches_its_own_event_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    queues, Stream.log = CudaQueues(torch.device("cuda")), []
    compute, offload, restore = (queues._streams[queue] for queue in Queue)
    assert len({compute, offload, restore}) == len(Queue)
    assert compute.priority < offload.priority == restore.priority == 0
    first, second = queues.record(Queue.COMPUTE), queues.record(Queue.RESTORE)
    queues.wait(Queue.OFFLOAD, first)
    queues.wait(Queue.COMPUTE, second)
    assert Stream.log == [
        ("record", first, compute), ("record", second, restore),
        ("wait", offload, first), ("wait", compute, second),
    ]  # fmt: skip
    first.completes = True
    assert (queues.completed(first), queues.completed(second)) == (True, False)
