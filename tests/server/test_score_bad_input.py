"""Bad input to `score` and `scorer`: each call gets its own error, which names field, value and bound."""

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from hiscore.launcher import Server
from tests.server.wire import WAYS, Refused, post, score_texts, score_tokens
from tests.support.comparison import check, truth_of
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY

pytestmark = pytest.mark.server

LABELS = [5, 77, 401]
IDS: dict[str, Any] = {
    "input_ids": [11, 12, 0, 13, 0],
    "delimiter_indices": [2, 4],
    "label_token_ids": [5, 6],
}
TEXTS: dict[str, Any] = {"query": ["Is it?"], "items": [" a", " b"], "label_token_ids": [5, 6]}
SOFTMAX = {"apply_softmax": True}

# Changed inputs (None: left out), parameters, and what the message must say.
Case = tuple[dict[str, Any], dict[str, Any], str]

PARAMETERS: dict[str, Case] = {
    "NaN temperature": ({}, {**SOFTMAX, "temperature": math.nan}, r"'temperature' must be finite, not nan"),
    # Quoted whole, it would be too long for gRPC, which then tells of another error.
    "temperature of a long string": (
        {},
        {**SOFTMAX, "temperature": "1" * 20_000},
        r"'temperature' must be a number, not '1+\.\.\.1+'$",
    ),
    "a long name": ({}, {"a" * 20_000: 1}, r"unknown parameter 'a{64}': known are"),
    "unknown parameter": ({}, {"aply_softmax": True}, r"unknown parameter 'aply_softmax': known are"),
    "label beyond the vocabulary": (
        {"label_token_ids": [5, 500]},
        {},
        r"'label_token_ids' holds 500: .* 0 to 499",
    ),
}
TOO_LONG = r"query and item have 4097 tokens together: at most 4096 \(MAX_CONTEXT\)"
SCORER: dict[str, Case] = {
    **PARAMETERS,
    "no indices": ({"delimiter_indices": []}, {}, r"'delimiter_indices' is empty"),
    # One token more than the context holds, query and the longer item together.
    "beyond the context": (
        {
            "input_ids": [11] * 4_000 + [0, 12, 0] + [13] * 97 + [0],
            "delimiter_indices": [4_000, 4_002, 4_100],
        },
        {},
        TOO_LONG,
    ),
    "too many tokens": (
        {"input_ids": ([11] * 1_000 + [0]) * 51, "delimiter_indices": list(range(1_000, 51_051, 1_001))},
        {},
        r"'input_ids' holds 51000 tokens: at most 50000",
    ),
    "labels left out": ({"label_token_ids": None}, {}, r"'label_token_ids' is missing"),
    "labels in text": ({"labels": [" Yes"]}, {}, r"'labels'"),
    "unknown input": ({"prompt": [" Yes"]}, {}, r"'prompt'"),
}
SCORE: dict[str, Case] = {
    **PARAMETERS,
    "no label": ({"label_token_ids": None}, {}, r"exactly one of 'labels' and 'label_token_ids' .*neither"),
    "label of no token": (
        {"label_token_ids": None, "labels": [" Yes", ""]},
        {},
        r"label '' is 0 tokens: a label needs at least one",
    ),
    "query and item empty": ({"query": [""], "items": ["a", ""]}, {}, r"the query and item 1 are both empty"),
    "beyond the context": ({"query": ["7" * 4_000], "items": ["1", "1" * 97]}, {}, TOO_LONG),
    "no query": ({"query": None}, {}, r"'query' is missing"),
    "no items": ({"items": None}, {}, r"'items' is missing"),
    "unknown input": ({"prompt": [" Yes"]}, {}, r"'prompt'"),
}
CASES = [("scorer", name) for name in SCORER] + [("score", name) for name in SCORE]

# What only typed tensors can say.
TWO_ROWS = {name: np.array([IDS[name]] * 2, np.int32) for name in IDS}
TWO_TEXTS = {
    "query": np.array([[b"a"], [b"b"]], np.object_),
    "items": np.array([[b"a"], [b"b"]], np.object_),
    "label_token_ids": np.array([[5], [5]], np.int32),
}
FLOATS, CUBE = np.array([[5]], np.float32), np.array([[[11, 0]]], np.int32)
TYPED: dict[str, tuple[str, dict[str, Any], str]] = {
    "two rows of ids": ("scorer", TWO_ROWS, r"'input_ids' has 2 rows: send one call per request"),
    "two rows of texts": ("score", TWO_TEXTS, r"'query' has 2 rows: send one call per request"),
    "rows that differ": ("scorer", {"input_ids": TWO_ROWS["input_ids"]}, r"batch size does not match"),
    "ids of 64 bits": ("scorer", {"input_ids": np.array([[11, 0]], np.int64)}, r"'input_ids'.*INT64.*INT32"),
    "ids of floats": ("scorer", {"input_ids": np.array([[11, 0]], np.float32)}, r"'input_ids'.*FP32.*INT32"),
    "labels of floats": ("score", {"label_token_ids": FLOATS}, r"'label_token_ids'.*FP32.*INT32"),
    "a query of ids": ("score", {"query": np.array([[5]], np.int32)}, r"'query'.*INT32.*BYTES"),
    "one dimension": ("scorer", {"input_ids": np.array([11, 0], np.int32)}, r"'input_ids'|'label_token_ids'"),
    "three dimensions": ("scorer", {"input_ids": CUBE}, r"'input_ids'.*Expected \[-1,-1\], got \[1,1,2\]"),
    "two queries": ("score", {"query": ["a", "b"]}, r"'query'.*Expected \[-1,1\], got \[1,2\]"),
    "bytes that are not UTF-8": ("score", {"items": [b"ok", b"\xff\xfe"]}, r"'items' is not valid UTF-8"),
    "half a surrogate pair": ("score", {"query": [b"\xed\xa0\xbd"]}, r"'query' is not valid UTF-8"),
    "a label that is not UTF-8": (
        "score",
        {"labels": [b" Yes\xc3"], "label_token_ids": None},
        r"'labels' is not valid UTF-8",
    ),
}


def refused(
    server: Server, way: str, model: str, changes: dict[str, Any], parameters: dict[str, Any]
) -> Refused:
    inputs = {**(IDS if model == "scorer" else TEXTS), **changes}
    inputs = {name: values for name, values in inputs.items() if values is not None}
    with pytest.raises(Refused) as raised:
        WAYS[way](server, model, inputs, parameters)
    return raised.value


def check_refusal(error: Refused, pattern: str) -> None:
    assert error.code == "INVALID_ARGUMENT", error
    assert re.search(pattern, error.message), error
    check_nothing_leaks(error.message)


def check_nothing_leaks(message: str) -> None:
    assert "Traceback" not in message
    assert 'File "' not in message
    assert not re.search(r"(^|[\s'\"(])/\w+", message), f"a path in {message!r}"


def case(model: str, name: str) -> Case:
    return (SCORER if model == "scorer" else SCORE)[name]


@pytest.fixture(scope="module", autouse=True)
def right_after_it_all(lm: Server, tiny_lm: Path) -> Iterator[None]:
    """After all that follows the server is ready, and still right."""
    yield
    with tritonclient.http.InferenceServerClient(lm.http_address) as client:
        assert client.is_server_ready()
        assert all(client.is_model_ready(model) for model in ("score", "tokenizer", "scorer"))
    call = random_tokens(np.random.default_rng(0), 30, [4, 1, 9], VOCABULARY)
    expected = truth_of(tiny_lm).scores(call.query, call.items, LABELS)
    check(score_tokens(lm, call, LABELS).scores, expected, over_vocabulary=True)


@pytest.mark.parametrize(("model", "name"), CASES)
def test_it_is_refused_over_grpc(model: str, name: str, lm: Server) -> None:
    changes, parameters, pattern = case(model, name)
    check_refusal(refused(lm, "grpc", model, changes, parameters), pattern)


@pytest.mark.parametrize("way", ["http", "generate"])
def test_it_is_refused_over_http(way: str, lm: Server) -> None:
    """As HTTP 400, see `wire`."""
    for model, name in CASES:
        changes, parameters, pattern = case(model, name)
        if way == "generate" and name == "unknown input":
            pattern = r"parameter 'prompt'"  # There, what is not an input is a parameter.
        check_refusal(refused(lm, way, model, changes, parameters), pattern)


@pytest.mark.parametrize("way", ["grpc", "http"])
@pytest.mark.parametrize("name", TYPED)
def test_a_wrong_tensor_is_refused(name: str, way: str, lm: Server) -> None:
    model, changes, pattern = TYPED[name]
    check_refusal(refused(lm, way, model, changes, {}), pattern)


def test_control_what_the_cases_change_is_good_as_it_was(lm: Server) -> None:
    for way in WAYS:
        for model, inputs in (("scorer", IDS), ("score", TEXTS)):
            assert WAYS[way](lm, model, inputs, {})["scores"].size


@pytest.mark.parametrize("model", ["score", "scorer"])
def test_good_calls_beside_bad_ones_are_right(model: str, lm: Server, tiny_lm: Path) -> None:
    """All the bad calls at once, with a good one for each."""
    names = [name for kind, name in CASES if kind == model]
    rng = np.random.default_rng(6)
    calls = [random_tokens(rng, 20, [3, 0, 7], VOCABULARY) for _ in names]

    def bad(name: str) -> Refused:
        changes, parameters, _ = case(model, name)
        return refused(lm, "grpc", model, changes, parameters)

    with ThreadPoolExecutor(16) as pool:
        pairs = [
            (pool.submit(bad, name), pool.submit(score_tokens, lm, call, LABELS))
            for name, call in zip(names, calls, strict=True)
        ]
        for name, call, (error, good) in zip(names, calls, pairs, strict=True):
            check_refusal(error.result(), case(model, name)[2])
            expected = truth_of(tiny_lm).scores(call.query, call.items, LABELS)
            check(good.result().scores, expected, over_vocabulary=True)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "JSON"),
        (b'{"query": "\xff", "items": ["a"], "label_token_ids": [5]}', "'query' is not valid UTF-8"),
        (
            b'{"query": "a", "items": ["a"], "label_token_ids": [5], "apply_softmax": "\xff"}',
            "parameters are not valid UTF-8",
        ),
        (b'{"query": "\\ud83d", "items": ["a"], "label_token_ids": [5]}', "surrogate"),
        (b'{"query": "a", "items": [3], "label_token_ids": [5]}', "string"),
        (b'{"query": "a", "items": ["a"], "label_token_ids": [5.5]}', "integer"),
        (b'{"query": ["a", "b"], "items": ["a"], "label_token_ids": [5]}', "'query'"),
    ],
)
def test_a_body_that_generate_cannot_read_is_refused(body: bytes, field: str, lm: Server) -> None:
    """What Triton's own JSON reader refuses, it calls an internal error: only the message can be held to."""
    with pytest.raises(Refused, match=field) as raised:
        post(lm, "score", body)
    check_nothing_leaks(raised.value.message)


@pytest.mark.parametrize("mebibytes", [5, 9, 48])
def test_a_large_body_of_json_does_not_end_the_server(mebibytes: int, lm: Server) -> None:
    """Triton's JSON reader needs stack in proportion. 48: all that a call may have, escaped as \\uXXXX."""
    body = json.dumps({**TEXTS, "query": "a" * (mebibytes * 2**20)}).encode()
    with pytest.raises(Refused, match=r"at most (8388608|69632)") as raised:
        post(lm, "score", body)
    assert raised.value.code == "INVALID_ARGUMENT"
    assert score_texts(lm, "Is it?", [" a"], LABELS).scores.shape == (1, 3)
