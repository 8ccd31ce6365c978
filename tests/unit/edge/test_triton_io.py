"""Requests of Triton: each is answered once, on the spot where the batcher is idle."""

import gc
import importlib
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hiscore.batching import waiting
from hiscore.batching.batched_model import BatchLimits, BatchPlan
from hiscore.batching.batcher import Batcher
from hiscore.errors import RequestError
from tests.support.timeouts import TIMEOUT_S, wait_until

MODULE = "hiscore.edge.triton_io"


class Model:
    """Answers a job with a tensor of itself."""

    between = 0
    async_launch = False

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def cost(self, job: str) -> int:
        return 1

    def plan(self) -> BatchPlan[str]:
        return BatchPlan(self.cost)

    def launch(self, jobs: list[str]) -> Any:
        assert self.gate.wait(TIMEOUT_S)
        self.batches.append(jobs)
        self.threads.add(threading.current_thread().name)
        answers = [RequestError("bad") if job == "bad" else {"out": f"{job}, done"} for job in jobs]
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

    def parameters(self) -> str:
        return ""


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


class Served:
    """A model behind a batcher, as `execute` serves it."""

    def __init__(self, module: ModuleType, alone: bool) -> None:
        self.module, self.model = module, Model()
        self.batcher = Batcher(self.model, BatchLimits(10, max_queue=2, max_alone_cost=int(alone)))

    def read(self, request: Request) -> str:
        if request.word == "unreadable":
            raise RequestError("unreadable")
        if request.word == "broken":
            raise ValueError("broken")
        return request.word

    def serve(self, *requests: Request, timeout_s: float = 100.0) -> Any:
        return self.module.serve(requests, self.read, self.batcher, timeout_s)

    def close(self) -> None:
        self.batcher.close()


@pytest.fixture(params=[True, False], ids=["alone", "queued"])
def served(request: pytest.FixtureRequest, triton_io: ModuleType) -> Served:
    return Served(triton_io, request.param)


EXPECTED = {
    "a": "a, done",
    "bad": "bad",
    "unreadable": "unreadable",
    "broken": "internal error, see the server's log",
}


@pytest.mark.parametrize("word", EXPECTED)
def test_a_request_by_itself_is_answered_once(word: str, served: Served) -> None:
    request = Request(word)
    returned = served.serve(request)
    served.close()
    answers = [*(returned or ()), *(response for response, _ in request.sent)]
    assert answers == [EXPECTED[word]]
    ran_on_the_spot = returned is not None
    assert ran_on_the_spot == (word in ("a", "bad") and served.batcher._limits.max_alone_cost > 0)


def test_several_are_queued_and_each_is_answered_once(served: Served) -> None:
    requests = [Request(word) for word in EXPECTED]
    assert served.serve(*requests) is None
    served.close()
    assert {each.word: [response for response, _ in each.sent] for each in requests} == {
        word: [answer] for word, answer in EXPECTED.items()
    }
    assert {flags for each in requests for _, flags in each.sent} == {1}
    assert "MainThread" not in served.model.threads


def test_a_full_queue_refuses_and_a_late_request_is_not_computed(served: Served) -> None:
    served.model.gate.clear()
    running, late, waiting, refused = Request("b"), Request("c", timeout_us=1), Request("d"), Request("e")
    served.serve(running, Request("unreadable"))
    wait_until(lambda: len(served.batcher._waiting) == 0, lambda: "it does not run")
    served.serve(late, waiting, refused)
    wait_until(lambda: bool(refused.sent), lambda: "it is not refused")
    assert "the server is full" in refused.sent[0][0]
    served.model.gate.set()
    served.close()
    assert (running.sent[0][0], waiting.sent[0][0]) == ("b, done", "d, done")
    assert "Request timeout expired in the queue" in late.sent[0][0]
    assert "c" not in {job for batch in served.model.batches for job in batch}
    assert served.batcher.totals.rejects == {"full": 1, "late": 1}


def test_a_request_whose_caller_has_gone_is_not_computed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL_AFTER_S", 0.0)
    served.model.gate.clear()
    running, gone = Request("b"), Request("c")
    served.serve(running, Request("unreadable"))
    wait_until(lambda: len(served.batcher._waiting) == 0, lambda: "it does not run")
    served.serve(gone, Request("unreadable"))
    gone.sender.has_gone = True
    served.model.gate.set()
    served.close()
    assert "the call was cancelled" in gone.sent[0][0]
    assert served.model.batches == [["b"]]


@pytest.mark.parametrize("word", sorted(set(EXPECTED) - {"broken"}))  # pytest keeps the error that was logged
def test_a_request_that_is_answered_is_not_kept(word: str, served: Served) -> None:
    """Behind it is shared memory of the server."""
    gc.disable()
    try:
        request = Request(word)
        kept = weakref.ref(request)
        returned = served.serve(request)
        served.close()
        assert returned or request.sent
        del request
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("given", "left", "timeout_s"),
    [
        ("", "", math.inf),
        ('{"temperature":0.5}', '{"temperature":0.5}', math.inf),
        ('{"id":"1","sequence_id":2,"headers":"x","triton_x":1,"top_k":3}', '{"top_k":3}', math.inf),
        ('{"timeout":2000000}', "{}", 2.0),
        # Neither a text that quotes such a name nor a name that begins like one is Triton's own.
        ('{"stop":"[\\"id\\"]","ids":1,"x_timeout":5}', '{"stop":"[\\"id\\"]","ids":1,"x_timeout":5}', math.inf),
    ],
)  # fmt: skip
def test_what_is_tritons_own_is_no_parameter(
    given: str, left: str, timeout_s: float, triton_io: ModuleType
) -> None:
    request = SimpleNamespace(parameters=lambda: given, timeout=lambda: 0)
    assert triton_io.parameters(request).replace(" ", "") == left
    assert triton_io.caller_timeout_s(request) == timeout_s
    assert triton_io.caller_timeout_s(SimpleNamespace(timeout=lambda: 500_000)) == 0.5
