"""Requests that another batcher works on first: each is answered once, on the spot where both are idle."""

import gc
import importlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hiscore.batching import waiting
from hiscore.batching.batched_model import BatchLimits, QueuedRequest, WholeJobs
from hiscore.batching.batcher import Batcher
from hiscore.batching.stages import Staged, TwoStages
from hiscore.errors import RequestError
from tests.support.timeouts import TIMEOUT_S, wait_until

MODULE = "hiscore.edge.triton_io"


class Model:
    """Answers a job with itself and its own name behind it; the last one, with a tensor of that."""

    between = 0

    def __init__(self, name: str, async_launch: bool) -> None:
        self.name, self.async_launch = name, async_launch
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def cost(self, job: str) -> int:
        return 1

    def plan(self) -> WholeJobs[str]:
        return WholeJobs(self.cost)

    def launch(self, jobs: list[str]) -> Any:
        assert self.gate.wait(TIMEOUT_S)
        self.batches.append(jobs)
        self.threads.add(threading.current_thread().name)
        answers: list[Any] = [
            RequestError(f"bad in {self.name}") if self.name in job else f"{job}-{self.name}" for job in jobs
        ]
        if self.name == "last":
            answers = [each if isinstance(each, RequestError) else {"out": each} for each in answers]
        yield SimpleNamespace(finish=lambda: answers, count=lambda: None)

    def join(self, job: str, answers: Any) -> Any:
        return answers[0]

    def on_failure(self, error: Exception) -> None:
        raise AssertionError(error)


class Error(str):
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = range(4)

    def __new__(cls, message: str, code: int) -> "Error":
        return str.__new__(cls, message)


class Sender:
    """What was sent to a caller, who may have gone."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.has_gone = False

    def send(self, response: Any, flags: int) -> None:
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return self.has_gone


class Request:
    def __init__(self, word: str, timeout_us: int = 0) -> None:
        self.word, self.timeout_us = word, timeout_us
        self.sender = Sender()

    @property
    def sent(self) -> list[tuple[Any, int]]:
        return self.sender.sent

    def get_response_sender(self) -> Sender:
        return self.sender

    def request_id(self) -> str:
        return self.word

    def timeout(self) -> int:
        return self.timeout_us


@pytest.fixture
def triton_io(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, where a response is what it holds."""
    backend = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        TritonError=Error,
        Tensor=lambda name, value: value,
        InferenceResponse=lambda tensors=None, error=None: str(error) if error else tensors[0],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


class Both:
    """Two batchers, the first of which computes on a thread of its own."""

    def __init__(self, module: ModuleType, alone: bool) -> None:
        self.module = module
        self.first, self.last = Model("first", async_launch=False), Model("last", async_launch=True)
        limits = BatchLimits(10, max_queue=2, max_alone_cost=int(alone))
        self.texts, self.batcher = Batcher(self.first, limits), Batcher(self.last, limits)

    def read(self, request: Request) -> Any:
        if request.word == "unreadable":
            raise RequestError("unreadable")
        if request.word.startswith("direct"):
            return request.word
        return Staged(request.word, self.then)

    def then(self, answer: str) -> str:
        if answer.startswith("misfit"):
            raise RequestError("misfit")
        if answer.startswith("broken"):
            raise ValueError("broken")
        return answer

    def serve(self, *requests: Request, timeout_s: float = 100.0) -> Any:
        calls = TwoStages(self.texts, self.batcher)
        return self.module.serve(requests, self.read, calls, timeout_s)

    def close(self) -> None:
        self.texts.close()
        self.batcher.close()


@pytest.fixture(params=[True, False], ids=["alone", "queued"])
def both(request: pytest.FixtureRequest, triton_io: ModuleType) -> Both:
    return Both(triton_io, request.param)


EXPECTED = {
    "a": "a-first-last",
    "direct": "direct-last",
    "unreadable": "unreadable",
    "first": "bad in first",
    "misfit": "misfit",
    "broken": "internal error, see the server's log",
    "last": "bad in last",
}


@pytest.mark.parametrize("word", EXPECTED)
def test_a_request_by_itself_is_answered_once(word: str, both: Both) -> None:
    request = Request(word)
    returned = both.serve(request)
    both.close()
    answers = [*(returned or ()), *(response for response, _ in request.sent)]
    assert answers == [EXPECTED[word]]
    ran_on_the_spot = returned is not None
    good = word in ("a", "direct", "first", "last")
    assert ran_on_the_spot == (good and both.texts._limits.max_alone_cost > 0)


def test_several_are_queued_and_each_is_answered_once(both: Both) -> None:
    requests = [Request(word) for word in EXPECTED]
    both.first.gate.clear()
    assert both.serve(*requests[:4]) is None  # two texts, for which there is room
    # What needs no text waits for none.
    wait_until(lambda: bool(requests[1].sent), lambda: "the direct one waits")
    assert requests[0].sent == []
    both.first.gate.set()
    wait_until(lambda: bool(requests[0].sent and requests[3].sent), lambda: "a text was not answered")
    assert both.serve(*requests[4:6]) is None
    wait_until(lambda: all(each.sent for each in requests[4:6]), lambda: "a text was not answered")
    assert both.serve(requests[6], Request("unreadable")) is None
    both.close()
    assert {each.word: [response for response, _ in each.sent] for each in requests} == {
        word: [answer] for word, answer in EXPECTED.items()
    }
    assert {flags for each in requests for _, flags in each.sent} == {1}
    assert "MainThread" not in both.first.threads


def test_a_full_queue_of_texts_refuses_and_a_late_text_is_not_encoded(both: Both) -> None:
    both.first.gate.clear()
    running, late, waiting, refused = Request("b"), Request("c", timeout_us=1), Request("d"), Request("e")
    both.serve(running, Request("unreadable"))
    wait_until(lambda: len(both.texts._waiting) == 0, lambda: "it does not run")
    both.serve(late, waiting, refused)
    wait_until(lambda: bool(refused.sent), lambda: "it is not refused")
    assert "the server is full" in refused.sent[0][0]
    both.first.gate.set()
    both.close()
    assert running.sent[0][0] == "b-first-last"
    assert waiting.sent[0][0] == "d-first-last"
    assert "Request timeout expired in the queue" in late.sent[0][0]
    assert "c" not in {job for batch in both.first.batches for job in batch}
    assert both.texts.totals.rejects == {"full": 1, "late": 1}


def test_a_deadline_holds_in_both_queues(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that was encoded in time may be late all the same."""
    submitted: list[QueuedRequest[str]] = []
    monkeypatch.setattr(both.batcher, "submit", submitted.extend)
    begin = time.monotonic()
    both.serve(Request("a", timeout_us=5_000_000), Request("unreadable"))
    end = time.monotonic()
    both.close()
    (request,) = submitted
    assert request.job == "a-first"
    assert begin + 5 <= request.deadline <= end + 5


def test_a_text_whose_caller_has_gone_is_not_encoded(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_AFTER_S", 0.0)
    both.first.gate.clear()
    running, gone = Request("b"), Request("c")
    both.serve(running, Request("unreadable"))
    wait_until(lambda: len(both.texts._waiting) == 0, lambda: "it does not run")
    both.serve(gone, Request("unreadable"))
    gone.sender.has_gone = True
    both.first.gate.set()
    both.close()
    assert "the call was cancelled" in gone.sent[0][0]
    assert both.first.batches == [["b"]]


@pytest.mark.parametrize("word", sorted(set(EXPECTED) - {"broken"}))  # pytest keeps the error that was logged
def test_a_request_that_is_answered_is_not_kept(word: str, both: Both) -> None:
    """Behind it is shared memory of the server."""
    gc.disable()
    try:
        request = Request(word)
        kept = weakref.ref(request)
        returned = both.serve(request)
        both.close()
        assert returned or request.sent
        del request
        assert kept() is None
    finally:
        gc.enable()
