"""The sender thread: order, joining, exactly one last response, callers that cancel, and calls that raise."""

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hiscore.decoding.engine import response_sender as sender_module
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.engine.response_sender import ResponseSender, ResponseStream, join
from hiscore.decoding.interface.logprobs import TokenLogprobs
from hiscore.decoding.interface.worker import DecodeBatch
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.errors import RequestError
from tests.support.decode_worker import HashWorker
from tests.support.timeouts import TIMEOUT_S, wait_until


@dataclass(eq=False)
class Caller:
    """What one caller was sent: (ids, text, reason) or an error, each with the flag of the last."""

    responses: list[tuple[Any, bool]] = field(default_factory=list)
    has_cancelled: bool = False
    cancel_calls: int = 0
    broken: bool = False


class FakeTriton:
    """In place of Triton. While `gate` is closed a send blocks, as it does on a busy server."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.sending = threading.Event()
        self.polled: list[Caller] = []
        self.streams: dict[Caller, ResponseStream] = {}
        self.sender = ResponseSender(self.send, self.is_cancelled, self.cancel)

    def send(self, caller: Caller, answer: Any, last: bool) -> bool:
        self.sending.set()
        assert self.gate.wait(TIMEOUT_S)
        assert not any(ended for _, ended in caller.responses), "a response after the last"
        if caller.broken:
            caller.responses.append(("broken", True))
            return False
        if isinstance(answer, dict):
            text, reason = (answer[name][0].decode() for name in ("text_output", "finish_reason"))
            answer = (answer["output_ids"].tolist(), text, reason)
        caller.responses.append((answer, last))
        return True

    def is_cancelled(self, caller: Caller) -> bool:
        self.polled.append(caller)
        return caller.has_cancelled

    def cancel(self, stream: ResponseStream) -> None:
        (caller,) = (each for each, its in self.streams.items() if its is stream)
        caller.cancel_calls += 1

    def open(self, shape: Callable[[Any], Any] = dict, whole: bool = False, broken: bool = False) -> Caller:
        caller = Caller(broken=broken)
        self.streams[caller] = self.sender.open(caller, shape=shape, whole=whole)
        return caller

    def put(self, caller: Caller, output: Output | RequestError) -> None:
        self.sender.put(self.streams[caller], output)

    def hold(self) -> Caller:
        """Keep the thread in the middle of another stream's send, so that what is put now accumulates."""
        self.gate.clear()
        self.sending.clear()
        self.put(other := self.open(), Output([0], "", "stop"))
        assert self.sending.wait(TIMEOUT_S)
        return other

    def send_all(self) -> None:
        """Wait until the thread has sent what was put so far."""
        other = self.hold()
        self.gate.set()
        wait_until(lambda: bool(other.responses))


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    triton = FakeTriton()
    yield triton
    triton.gate.set()
    triton.sender.close()


def test_outputs_arrive_in_order_and_the_last_is_marked(triton: FakeTriton) -> None:
    caller = triton.open()
    for place in range(3):
        triton.put(caller, Output([place], f"{place} ", ""))
        wait_until(lambda: len(caller.responses) > place)  # noqa: B023
    triton.put(caller, Output([3], "é", "length"))
    wait_until(lambda: len(caller.responses) == 4)
    assert caller.responses == [
        (([0], "0 ", ""), False),
        (([1], "1 ", ""), False),
        (([2], "2 ", ""), False),
        (([3], "é", "length"), True),
    ]


@pytest.mark.parametrize("broken", [True, False])
def test_a_response_that_cannot_be_made_ends_its_own_stream(triton: FakeTriton, broken: bool) -> None:
    def shape(outputs: Any) -> Any:
        if broken:
            raise KeyError("text_output")
        return outputs

    caller, other = triton.open(shape), triton.open()
    for each in (caller, other):
        triton.put(each, Output([1], "a", ""))
        triton.put(each, Output([2], "b", "stop"))
    wait_until(lambda: all(each.responses and each.responses[-1][1] for each in (caller, other)))
    assert [answer for answer, _ in other.responses][-1][2] == "stop"
    (answer, _), failed = caller.responses[-1], caller.cancel_calls > 0
    assert (isinstance(answer, RequestError), failed) == (broken, broken)


def test_what_gathers_goes_out_as_one_response_of_each_stream(triton: FakeTriton) -> None:
    triton.hold()
    callers = [triton.open(), triton.open()]
    for place in range(5):
        for caller in callers:
            triton.put(caller, Output([place], str(place), "stop" if place == 4 else ""))
    triton.gate.set()
    wait_until(lambda: callers[1].responses)
    assert [caller.responses for caller in callers] == [[(([0, 1, 2, 3, 4], "01234", "stop"), True)]] * 2


def test_an_error_ends_a_stream_after_what_came_before_it(triton: FakeTriton) -> None:
    triton.hold()
    caller, refused, error = triton.open(), triton.open(), RequestError("no")
    triton.put(caller, Output([1], "a", ""))
    triton.put(caller, error)
    triton.put(caller, Output([2], "too late", "stop"))
    triton.put(refused, error)
    triton.gate.set()
    wait_until(lambda: refused.responses)
    assert caller.responses == [(([1], "a", ""), False), (error, True)]
    assert refused.responses == [(error, True)]


def test_nothing_follows_the_last_output(triton: FakeTriton) -> None:
    triton.hold()
    caller = triton.open()
    triton.put(caller, Output([1], "a", "stop"))
    triton.put(caller, Output([2], "b", "length"))
    triton.put(caller, RequestError("no"))
    triton.gate.set()
    wait_until(lambda: caller.responses)
    triton.put(caller, Output([3], "c", "stop"))
    triton.send_all()
    assert caller.responses == [(([1], "a", "stop"), True)]


def test_a_caller_that_cancels_is_cancelled_until_it_has_its_last_response(triton: FakeTriton) -> None:
    stays, goes = triton.open(), triton.open()
    wait_until(lambda: {id(stays), id(goes)} <= set(map(id, triton.polled)))
    assert goes.cancel_calls == 0
    goes.has_cancelled = True
    wait_until(lambda: goes.cancel_calls)
    polled = triton.polled.count(goes)
    wait_until(lambda: triton.polled.count(stays) > polled + 3)
    assert triton.polled.count(goes) == polled
    # The first time may have been too early: before there was a stream.
    wait_until(lambda: goes.cancel_calls > 1)
    triton.put(goes, Output([], "", "cancelled"))
    wait_until(lambda: goes.responses)
    cancelled, polled = goes.cancel_calls, triton.polled.count(stays)
    wait_until(lambda: triton.polled.count(stays) > polled + 3)
    assert (goes.cancel_calls, stays.cancel_calls) == (cancelled, 0)
    assert goes.responses == [(([], "", "cancelled"), True)]


def test_a_caller_that_cancels_before_its_sequence_begins_is_not_served_to_its_end() -> None:
    """Reading the request takes long; when the call reaches the engine, its caller has cancelled."""
    worker, cancelled = HashWorker(), threading.Event()

    def on_step(rows: DecodeBatch) -> None:
        assert cancelled.wait(TIMEOUT_S), "its caller has been forgotten"

    worker.on_step = on_step

    def cancel(stream: ResponseStream) -> None:
        engine.cancel(stream)
        cancelled.set()

    caller = Caller(has_cancelled=True)
    sender = ResponseSender(
        send=lambda caller, answer, last: caller.responses.append((answer, last)) or True,
        is_cancelled=lambda caller: caller.has_cancelled,
        cancel=cancel,
    )
    engine = DecodeEngine(worker, None, frozenset(), 10, sender.put)
    stream = sender.open(caller)
    assert cancelled.wait(TIMEOUT_S)
    cancelled.clear()
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    engine.submit(DecodeCall(np.array([1], np.int32), params, math.inf), stream)
    wait_until(lambda: caller.responses and caller.responses[-1][1])
    engine.close()
    sender.close()
    assert caller.responses[-1][0]["finish_reason"][0] == b"cancelled"


def test_every_one_of_many_callers_is_polled(triton: FakeTriton) -> None:
    # Or the first round would be of those alone that it finds open.
    triton.hold()
    callers = [triton.open() for _ in range(3 * sender_module.MAX_POLLED)]
    triton.gate.set()
    known = set(callers)
    wait_until(lambda: known <= set(triton.polled))
    first_round = [caller for caller in triton.polled if caller in known][: len(callers)]
    assert len(set(first_round)) == len(callers)


def test_a_stream_that_cannot_be_sent_to_is_cancelled_and_dropped(triton: FakeTriton) -> None:
    caller = triton.open(broken=True)
    triton.put(caller, Output([1], "a", ""))
    wait_until(lambda: caller.cancel_calls)
    triton.put(caller, Output([2], "b", ""))
    triton.put(caller, Output([], "", "cancelled"))
    triton.send_all()
    assert caller.responses == [("broken", True)]
    assert caller.cancel_calls == 1


def test_an_error_of_one_stream_does_not_end_the_thread(
    triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caller = triton.open()
    monkeypatch.setattr(triton.sender, "_is_cancelled", lambda caller: 1 / 0)
    wait_until(lambda: "ZeroDivisionError" in caplog.text)
    triton.put(caller, Output([1], "a", "stop"))
    wait_until(lambda: caller.responses)


def test_no_error_is_sent_to_a_closed_stream(triton: FakeTriton, caplog: pytest.LogCaptureFixture) -> None:
    triton.hold()
    caller = triton.open(broken=True)
    triton.put(caller, Output([1], "a", ""))
    triton.put(caller, RequestError("no"))
    triton.gate.set()
    wait_until(lambda: caller.cancel_calls)
    assert caller.responses == [("broken", True)]
    assert "sending to a stream failed" not in caplog.text


def test_closing_sends_what_was_put(triton: FakeTriton) -> None:
    triton.hold()
    caller = triton.open()
    triton.put(caller, Output([1], "a", ""))
    triton.gate.set()
    triton.sender.close()
    assert caller.responses == [(([1], "a", ""), False)]


def test_after_the_last_response_the_stream_refers_to_no_response_sender() -> None:
    sender = ResponseSender(
        send=lambda caller, answer, last: not caller.broken,
        is_cancelled=lambda caller: False,
        cancel=lambda stream: None,
    )
    callers = [Caller(), Caller(broken=True), Caller()]
    held = [weakref.ref(caller) for caller in callers]
    streams = [sender.open(callers.pop(0)) for _ in held]
    for stream, reason in zip(streams, ("stop", "", ""), strict=True):
        sender.put(stream, Output([1], "a", reason))
    wait_until(lambda: [reference() is None for reference in held] == [True, True, False])
    sender.put(streams[2], RequestError("no"))
    wait_until(lambda: held[2]() is None)
    sender.close()


def test_a_response_has_the_contracts_types() -> None:
    outputs = join([Output([7], "ä", ""), Output([], "b", ""), Output([2**31 - 1], "", "stop")])
    assert outputs["output_ids"].dtype == np.int32
    assert outputs["output_ids"].tolist() == [7, 2**31 - 1]
    assert outputs["text_output"].tolist() == ["äb".encode()]
    assert outputs["finish_reason"].tolist() == [b"stop"]
    assert join([Output([], "", "cancelled")])["output_ids"].shape == (0,)


def test_a_whole_stream_is_one_response(triton: FakeTriton) -> None:
    caller, streamed = triton.open(whole=True), triton.open()
    for each in (caller, streamed):
        triton.put(each, Output([1], "a", ""))
    wait_until(lambda: streamed.responses)
    assert not caller.responses
    triton.put(caller, Output([2], "b", "length"))
    wait_until(lambda: caller.responses)
    assert caller.responses == [(([1, 2], "ab", "length"), True)]


def test_a_whole_stream_that_fails_is_one_error(triton: FakeTriton) -> None:
    caller, error = triton.open(whole=True), RequestError("no")
    triton.put(caller, Output([1], "a", ""))
    triton.put(caller, error)
    wait_until(lambda: caller.responses)
    assert caller.responses == [(error, True)]


def test_log_probabilities_have_a_row_for_each_token() -> None:
    def of(chosen: float, *ids: int) -> TokenLogprobs:
        return TokenLogprobs(chosen, np.array(ids, np.int32), -np.array(ids, np.float32))

    joined = join(
        [
            Output([5], "a", "", (3, 1, 1), "", (of(-0.5, 1, 2),)),
            Output([], "b", "", (3, 1, 1)),
            Output([6], "", "stop", (3, 1, 2), "x", (of(-1.5, 3, 4),)),
        ]
    )
    assert joined["output_logprobs"].tolist() == [-0.5, -1.5]
    assert joined["top_token_ids"].tolist() == [[1, 2], [3, 4]]
    assert joined["top_logprobs"].tolist() == [[-1, -2], [-3, -4]]
    assert joined["usage"].tolist() == [3, 1, 2]
    assert joined["matched_stop"].tolist() == [b"x"]
    without = join([Output([5], "a", "stop")])
    assert without["output_logprobs"].shape == (0,)
    assert without["top_token_ids"].shape == without["top_logprobs"].shape == (0, 0)
    only_chosen = join([Output([5], "a", "", (3, 1, 1), "", (of(-0.5),))])
    assert only_chosen["top_token_ids"].shape == (1, 0)
    types = {
        name: only_chosen[name].dtype
        for name in ("output_logprobs", "top_token_ids", "top_logprobs", "usage")
    }
    assert types == {
        "output_logprobs": np.float32, "top_token_ids": np.int32, "top_logprobs": np.float32, "usage": np.int32
    }  # fmt: skip
