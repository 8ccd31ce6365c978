"""Requests: how they are read, every reason to refuse one, and that a large text delays no other request."""

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.decoding.engine import intake as request_module
from hiscore.decoding.engine.intake import DecodeRequest, PromptReader, RequestIntake
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import Code, RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.tokenization.tokenizer import load_tokenizer
from tests.support import tiny_tokenizers
from tests.support.timeouts import TIMEOUT_S

FACTS = CheckpointFacts(vocab_size=700, context_length=100, is_classifier=False)
IDS = np.array([5, 0, 699], np.int32)
PLAIN = SamplingParams()

LARGE = "a" * (request_module.LARGE_CHARACTERS + 1)


@pytest.fixture(scope="module", params=["llama3", "eos", "twice"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    return tiny_tokenizers.save(getattr(tiny_tokenizers, request.param)(), directory)


@pytest.mark.parametrize("text", ["", "Is this a fruit?", "naïve 🍎 <|im_end|>", " a\n\n  b "])
def test_text_is_encoded_as_its_tokenizer_does(checkpoint: Path, text: str) -> None:
    tokenizer = load_tokenizer(checkpoint)
    facts = CheckpointFacts(tokenizer.backend.get_vocab_size(), 100, False)
    expected = AutoTokenizer.from_pretrained(checkpoint)(text)["input_ids"]
    prompt = PromptReader(facts, tokenizer, 1_000).read(None, text, PLAIN)
    assert prompt.dtype == np.int32
    assert prompt.tolist() == expected


def test_ids_are_taken_as_they_are_and_copied() -> None:
    given = IDS.copy()
    prompt = PromptReader(FACTS, None, 1_000).read(given, None, PLAIN)
    given[:] = 0
    assert prompt.tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("ids", "text", "params", "says"),
    [
        (None, None, PLAIN, "exactly one of 'input_ids' and 'text_input' is needed: neither was sent"),
        (IDS, "a", PLAIN, "exactly one of 'input_ids' and 'text_input' is needed: both were sent"),
        (IDS[:0], None, PLAIN, "'input_ids' is empty"),
        (np.array([5, -1], np.int32), None, PLAIN, "'input_ids' holds -1: ids of this model are 0 to 699"),
        (np.array([700], np.int32), None, PLAIN, "'input_ids' holds 700: ids of this model are 0 to 699"),
        (None, "ää", PLAIN, "'text_input' needs a tokenizer, which this checkpoint does not have"),
        (IDS, None, SamplingParams(stop=("a",)), "parameter 'stop' needs text"),
    ],
)
def test_bad_prompts_are_named(ids: Any, text: str | None, params: SamplingParams, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        PromptReader(FACTS, None, 1_000).read(ids, text, params)
    assert refused.value.code is Code.INVALID_ARG


def test_text_has_bounds_too(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.smollm2(), tmp_path))
    reader = PromptReader(FACTS, tokenizer, 5)
    with pytest.raises(RequestError, match="'text_input' is empty: at least one token"):
        reader.read(None, "", PLAIN)
    assert len(reader.read(None, "abcde", PLAIN))
    with pytest.raises(RequestError, match="'text_input' holds 6 bytes: at most 5 in one call"):
        reader.read(None, "äää", PLAIN)
    # A tokenizer may have tokens for which there is no embedding.
    few = PromptReader(CheckpointFacts(3, 100, False), tokenizer, 5)
    with pytest.raises(RequestError, match=r"'text_input' holds .* ids of this model are 0 to 2"):
        few.read(None, "abc", PLAIN)
    assert reader.read(None, "a", SamplingParams(stop=("b",))).shape == (1,)


class SlowReader:
    """Encodes each character as its code, large texts once `gate` is open."""

    def __init__(self) -> None:
        self.gate, self.reached = threading.Event(), threading.Event()

    def compile(self, params: SamplingParams) -> None:
        return None

    def read(self, ids: Any, text: str, params: SamplingParams) -> Any:
        if len(text) > request_module.LARGE_CHARACTERS:
            self.reached.set()
            assert self.gate.wait(TIMEOUT_S), "a large text is encoded on the thread that accepts requests"
        if text == "bad":
            raise RequestError("bad")
        if text == "odd":
            raise KeyError("inside")
        return np.array([ord(each) for each in text[:4]], np.int32)


class Edge:
    """Where requests come from, and where calls go."""

    def __init__(self) -> None:
        self.reader = SlowReader()
        self.calls: dict[int, DecodeCall] = {}
        self.refused: dict[int, RequestError] = {}
        self.intake = RequestIntake(cast("PromptReader", self.reader), self.submit, self.refused.__setitem__)

    def submit(self, call: DecodeCall, name: int) -> None:
        if call.params.max_tokens == 99:
            raise RequestError("too long")
        self.calls[name] = call

    def accept(self, name: int, text: str, max_tokens: int = 1) -> None:
        self.intake.accept(DecodeRequest(None, text, SamplingParams(max_tokens=max_tokens), 9.0, 7.0), name)


@pytest.fixture
def edge() -> Edge:
    return Edge()


def test_a_large_text_holds_no_other_call_up(edge: Edge) -> None:
    edge.accept(0, LARGE)
    assert edge.reader.reached.wait(TIMEOUT_S)
    edge.accept(1, "b" * request_module.LARGE_CHARACTERS)
    assert set(edge.calls) == {1}
    edge.reader.gate.set()
    edge.intake.close()
    assert {name: call.prompt.tolist() for name, call in edge.calls.items()} == {0: [97] * 4, 1: [98] * 4}
    assert {(call.deadline, call.start_by) for call in edge.calls.values()} == {(9.0, 7.0)}


def test_more_large_texts_than_may_wait_are_refused_for_now(edge: Edge) -> None:
    edge.accept(0, LARGE)
    assert edge.reader.reached.wait(TIMEOUT_S)
    for name in range(1, request_module.MAX_LARGE + 2):
        edge.accept(name, LARGE)
    assert list(edge.refused) == [request_module.MAX_LARGE + 1]
    assert edge.intake.num_refused == 1
    assert edge.refused[request_module.MAX_LARGE + 1].code is Code.UNAVAILABLE
    edge.reader.gate.set()
    edge.intake.close()
    assert sorted(edge.calls) == list(range(request_module.MAX_LARGE + 1))


def test_what_cannot_be_read_or_submitted_is_refused_and_the_thread_goes_on(edge: Edge) -> None:
    edge.reader.gate.set()
    edge.accept(0, "bad")
    edge.accept(1, "odd")
    edge.accept(2, LARGE, max_tokens=99)
    edge.accept(3, LARGE)
    edge.intake.close()
    assert {name: error.message for name, error in edge.refused.items()} == {
        0: "bad",
        1: "internal error, see the server's log",
        2: "too long",
    }
    assert list(edge.calls) == [3]
