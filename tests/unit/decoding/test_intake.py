"""A large text is encoded beside the other calls, which go on; whatever happens, each call is answered once."""

import math
import threading
from typing import Any, cast

import numpy as np
import pytest

from hiscore.decoding import request as request_module
from hiscore.decoding.request import DecodeRequest, PromptReader, RequestIntake
from hiscore.decoding.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import Code, RequestError

PATIENCE_S = 20.0
LARGE = "a" * (request_module.LARGE_CHARACTERS + 1)


class Prompts:
    """Encodes each character as its code, large texts once `gate` is open."""

    def __init__(self) -> None:
        self.gate, self.reached = threading.Event(), threading.Event()

    def read(self, ids: Any, text: str, options: SamplingParams) -> Any:
        if len(text) > request_module.LARGE_CHARACTERS:
            self.reached.set()
            assert self.gate.wait(PATIENCE_S), "a large text is encoded by the thread that takes calls"
        if text == "bad":
            raise RequestError("bad")
        if text == "odd":
            raise KeyError("inside")
        return np.array([ord(each) for each in text[:4]], np.int32)


class Edge:
    """Where calls come from, and where they go."""

    def __init__(self) -> None:
        self.prompts = Prompts()
        self.calls: dict[int, DecodeCall] = {}
        self.refused: dict[int, RequestError] = {}
        self.intake = RequestIntake(cast("PromptReader", self.prompts), self.submit, self.refused.__setitem__)

    def submit(self, call: DecodeCall, name: int) -> None:
        if call.params.max_tokens == 99:
            raise RequestError("too long")
        self.calls[name] = call

    def take(self, name: int, text: str, max_tokens: int = 1) -> None:
        self.intake.accept(
            DecodeRequest(None, text, SamplingParams(max_tokens=max_tokens), math.inf, 7.0), name
        )


@pytest.fixture
def edge() -> Edge:
    return Edge()


def test_a_large_text_holds_no_other_call_up(edge: Edge) -> None:
    edge.take(0, LARGE)
    assert edge.prompts.reached.wait(PATIENCE_S)
    edge.take(1, "b")
    assert set(edge.calls) == {1}
    edge.prompts.gate.set()
    edge.intake.close()
    assert {name: call.prompt.tolist() for name, call in edge.calls.items()} == {0: [97] * 4, 1: [98]}
    assert {call.start_by for call in edge.calls.values()} == {7.0}


def test_more_large_texts_than_may_wait_are_refused_for_now(edge: Edge) -> None:
    edge.take(0, LARGE)
    assert edge.prompts.reached.wait(PATIENCE_S)
    for name in range(1, request_module.MAX_LARGE + 2):
        edge.take(name, LARGE)
    assert list(edge.refused) == [request_module.MAX_LARGE + 1]
    assert edge.refused[request_module.MAX_LARGE + 1].code is Code.UNAVAILABLE
    edge.prompts.gate.set()
    edge.intake.close()
    assert sorted(edge.calls) == list(range(request_module.MAX_LARGE + 1))


def test_what_cannot_be_read_or_submitted_is_refused_and_the_thread_goes_on(edge: Edge) -> None:
    edge.prompts.gate.set()
    edge.take(0, "bad")
    edge.take(1, "odd")
    edge.take(2, LARGE, max_tokens=99)
    edge.take(3, LARGE)
    edge.intake.close()
    assert {name: error.message for name, error in edge.refused.items()} == {
        0: "bad",
        1: "internal error, see the server's log",
        2: "too long",
    }
    assert list(edge.calls) == [3]
