"""The sender thread: order, joining, exactly one last response, callers that go, and calls that raise."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.decoding.worker.interface import DecodeBatch
from hiscore.errors import RequestError
from hiscore.serving import response_sender as sender_module
from hiscore.serving.response_sender import ResponseSender, ResponseStream, join
from tests.support.decode_worker import HashWorker

PATIENCE_S = 10.0


def eventually(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


@dataclass(eq=False)
class Listener:
    """What one caller was sent: (ids, text, reason) or an error, each with the flag of the last."""

    responses: list[tuple[Any, bool]] = field(default_factory=list)
    gone: bool = False
    cancelled: int = 0
    broken: bool = False


class Edge:
    """Stands where Triton is; while `gate` is shut, a send waits, as it does on a busy server."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.sending = threading.Event()
        self.counts = 0
        self.idle = True
        self.asked: list[Listener] = []
        self.callers: dict[Listener, ResponseStream] = {}
        self.sender = ResponseSender(self.send, self.abandoned, self.cancel, self.count)

    def send(self, caller: Listener, answer: Any, last: bool) -> bool:
        self.sending.set()
        assert self.gate.wait(PATIENCE_S)
        assert not any(ended for _, ended in caller.responses), "a response after the last"
        if caller.broken:
            caller.responses.append(("broken", True))
            return False
        if isinstance(answer, dict):
            text, reason = (answer[name][0].decode() for name in ("text_output", "finish_reason"))
            answer = (answer["output_ids"].tolist(), text, reason)
        caller.responses.append((answer, last))
        return True

    def abandoned(self, caller: Listener) -> bool:
        self.asked.append(caller)
        return caller.gone

    def cancel(self, caller: ResponseStream) -> None:
        (listener,) = (each for each, its in self.callers.items() if its is caller)
        listener.cancelled += 1

    def open(self, listener: Listener) -> None:
        self.callers[listener] = self.sender.open(listener)

    def put(self, listener: Listener, piece: Output | RequestError) -> None:
        self.sender.put(self.callers[listener], piece)

    def count(self) -> bool:
        self.counts += 1
        return self.idle

    def hold(self) -> Listener:
        """Keep the thread in the middle of another stream's send, so that what is put now gathers."""
        other = Listener()
        self.gate.clear()
        self.sending.clear()
        self.open(other)
        self.put(other, Output([0], "", "stop"))
        assert self.sending.wait(PATIENCE_S)
        return other


@pytest.fixture
def edge() -> Iterator[Edge]:
    edge = Edge()
    yield edge
    edge.gate.set()
    edge.sender.close()


def test_pieces_arrive_in_order_and_the_last_is_marked(edge: Edge) -> None:
    caller = Listener()
    edge.open(caller)
    for place in range(3):
        edge.put(caller, Output([place], f"{place} ", ""))
        eventually(lambda: len(caller.responses) > place)  # noqa: B023
    edge.put(caller, Output([3], "é", "length"))
    eventually(lambda: len(caller.responses) == 4)
    assert caller.responses == [
        (([0], "0 ", ""), False),
        (([1], "1 ", ""), False),
        (([2], "2 ", ""), False),
        (([3], "é", "length"), True),
    ]


def test_what_gathers_goes_out_as_one_response_of_each_stream(edge: Edge) -> None:
    edge.hold()
    callers = [Listener(), Listener()]
    for caller in callers:
        edge.open(caller)
    for place in range(5):
        for caller in callers:
            edge.put(caller, Output([place], str(place), "stop" if place == 4 else ""))
    edge.gate.set()
    eventually(lambda: callers[1].responses)
    assert [caller.responses for caller in callers] == [[(([0, 1, 2, 3, 4], "01234", "stop"), True)]] * 2


def test_an_error_ends_a_stream_after_what_came_before_it(edge: Edge) -> None:
    edge.hold()
    caller, refused = Listener(), Listener()
    error = RequestError("no")
    edge.open(caller)
    edge.put(caller, Output([1], "a", ""))
    edge.put(caller, error)
    edge.put(caller, Output([2], "too late", "stop"))
    edge.open(refused)
    edge.put(refused, error)
    edge.gate.set()
    eventually(lambda: refused.responses)
    assert caller.responses == [(([1], "a", ""), False), (error, True)]
    assert refused.responses == [(error, True)]


def test_nothing_follows_the_last_piece(edge: Edge) -> None:
    edge.hold()
    caller = Listener()
    edge.open(caller)
    edge.put(caller, Output([1], "a", "stop"))
    edge.put(caller, Output([2], "b", "length"))
    edge.put(caller, RequestError("no"))
    edge.gate.set()
    eventually(lambda: caller.responses)
    edge.put(caller, Output([3], "c", "stop"))
    other = edge.hold()
    edge.gate.set()
    eventually(lambda: other.responses)
    assert caller.responses == [(([1], "a", "stop"), True)]


def test_a_caller_that_has_gone_is_cancelled_until_it_has_its_last_response(edge: Edge) -> None:
    stays, goes = Listener(), Listener()
    edge.open(stays)
    edge.open(goes)
    eventually(lambda: {id(stays), id(goes)} <= set(map(id, edge.asked)))
    assert goes.cancelled == 0
    goes.gone = True
    eventually(lambda: goes.cancelled)
    asked = edge.asked.count(goes)
    eventually(lambda: edge.asked.count(stays) > asked + 3)
    assert edge.asked.count(goes) == asked
    # The first time may have been too early: before there was a stream.
    eventually(lambda: goes.cancelled > 1)
    edge.put(goes, Output([], "", "cancelled"))
    eventually(lambda: goes.responses)
    cancelled, asked = goes.cancelled, edge.asked.count(stays)
    eventually(lambda: edge.asked.count(stays) > asked + 3)
    assert (goes.cancelled, stays.cancelled) == (cancelled, 0)
    assert goes.responses == [(([], "", "cancelled"), True)]


def test_a_caller_that_goes_before_its_stream_begins_is_not_served_to_its_end() -> None:
    """The call is read, which takes long, and only then handed to the engine; its caller has gone meanwhile."""
    worker, cancelled = HashWorker(), threading.Event()

    def on_step(rows: DecodeBatch) -> None:
        assert cancelled.wait(PATIENCE_S), "its caller has been forgotten"

    worker.on_step = on_step

    def cancel(caller: ResponseStream) -> None:
        engine.cancel(caller)
        cancelled.set()

    listener = Listener(gone=True)
    sender = ResponseSender(
        send=lambda listener, answer, last: listener.responses.append((answer, last)) or True,
        is_cancelled=lambda listener: listener.gone,
        cancel=cancel,
        update_metrics=lambda: True,
    )
    engine = DecodeEngine(worker, None, frozenset(), 10, sender.put)
    caller = sender.open(listener)
    assert cancelled.wait(PATIENCE_S)
    cancelled.clear()
    options = SamplingParams(max_tokens=100, ignore_eos=True)
    engine.submit(DecodeCall(np.array([1], np.int32), options, math.inf), caller)
    eventually(lambda: listener.responses and listener.responses[-1][1])
    engine.close()
    sender.close()
    assert listener.responses[-1][0]["finish_reason"][0] == b"cancelled"


def test_every_one_of_many_callers_is_asked(edge: Edge) -> None:
    callers = [Listener() for _ in range(3 * sender_module.MAX_POLLED)]
    for caller in callers:
        edge.open(caller)
    eventually(lambda: set(map(id, callers)) <= set(map(id, edge.asked)))
    first_round = edge.asked[: len(callers)]
    assert len({id(caller) for caller in first_round}) == len(callers)


def test_a_stream_that_cannot_be_sent_to_is_cancelled_and_dropped(edge: Edge) -> None:
    caller = Listener(broken=True)
    edge.open(caller)
    edge.put(caller, Output([1], "a", ""))
    eventually(lambda: caller.cancelled)
    edge.put(caller, Output([2], "b", ""))
    edge.put(caller, Output([], "", "cancelled"))
    other = edge.hold()
    edge.gate.set()
    eventually(lambda: other.responses)
    assert caller.responses == [("broken", True)]
    assert caller.cancelled == 1


def test_one_streams_trouble_does_not_end_the_thread(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caller = Listener()
    edge.open(caller)
    monkeypatch.setattr(edge.sender, "_is_cancelled", lambda caller: 1 / 0)
    eventually(lambda: "ZeroDivisionError" in caplog.text)
    edge.put(caller, Output([1], "a", "stop"))
    eventually(lambda: caller.responses)


def test_counting_goes_on_after_the_last_stream_and_then_rests(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "METRICS_S", 0.2)
    time.sleep(0.3)
    assert edge.counts == 0
    caller = Listener()
    edge.open(caller)
    edge.put(caller, Output([1], "a", "stop"))
    eventually(lambda: caller.responses)
    at_end = edge.counts
    eventually(lambda: edge.counts > at_end)
    eventually(lambda: edge.sender._metrics_settled)
    counts = edge.counts
    time.sleep(0.5)
    assert edge.counts == counts


def test_counting_goes_on_while_something_is_held(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "METRICS_S", 0.01)
    edge.idle = False
    caller = Listener()
    edge.open(caller)
    edge.put(caller, Output([1], "a", "stop"))
    eventually(lambda: caller.responses)
    at_end = edge.counts
    eventually(lambda: edge.counts > at_end + 5)
    edge.idle = True
    eventually(lambda: edge.sender._metrics_settled)


def test_closing_sends_what_was_put(edge: Edge) -> None:
    edge.hold()
    caller = Listener()
    edge.open(caller)
    edge.put(caller, Output([1], "a", ""))
    edge.gate.set()
    edge.sender.close()
    assert caller.responses == [(([1], "a", ""), False)]


def test_who_has_been_sent_the_last_is_let_go_whoever_still_knows_the_caller() -> None:
    sender = ResponseSender(
        send=lambda listener, answer, last: not listener.broken,
        is_cancelled=lambda listener: False,
        cancel=lambda caller: None,
        update_metrics=lambda: True,
    )
    listeners = [Listener(), Listener(broken=True), Listener()]
    held = [weakref.ref(listener) for listener in listeners]
    callers = [sender.open(listeners.pop(0)) for _ in held]
    for caller, reason in zip(callers, ("stop", "", ""), strict=True):
        sender.put(caller, Output([1], "a", reason))
    eventually(lambda: [reference() is None for reference in held] == [True, True, False])
    sender.put(callers[2], RequestError("no"))
    eventually(lambda: held[2]() is None)
    sender.close()


def test_joined_has_the_contracts_types() -> None:
    outputs = join([Output([7], "ä", ""), Output([], "b", ""), Output([2**31 - 1], "", "stop")])
    assert outputs["output_ids"].dtype == np.int32
    assert outputs["output_ids"].tolist() == [7, 2**31 - 1]
    assert outputs["text_output"].tolist() == ["äb".encode()]
    assert outputs["finish_reason"].tolist() == [b"stop"]
    assert join([Output([], "", "cancelled")])["output_ids"].shape == (0,)
