"""Any tensors and parameters over gRPC: each call gets an answer or its own error, and harms no other.

Below tritonclient, which would refuse most of this before it is sent. What is known to end tritonserver 2.51
itself, shapes that overflow, is not here but in `test_abuse_fatal`.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hiscore.launcher import Server
from tests.server.beside import good_calls_beside
from tests.server.generation import over_grpc
from tests.server.raw_http import leak
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

# INTERNAL is how Triton calls some of what it refuses itself; ours would be a fault, and its message says so.
REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "INTERNAL"}
FAULT = "internal error"
NUMBERS = ("BOOL", "UINT8", "INT8", "INT32", "UINT32", "INT64", "FP16", "BF16", "FP32", "FP64")
TYPES = [*NUMBERS, "BYTES", "", "X"]


def words(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


# Name, type, shape and raw bytes of each tensor of a good call.
Tensor = tuple[str, str, list[int], bytes]
TEXTS: list[Tensor] = [
    ("query", "BYTES", [1, 1], words(b"Is it?")),
    ("items", "BYTES", [1, 2], words(b" a", b" b")),
    ("label_token_ids", "INT32", [1, 2], numbers(5, 6)),
]
GOOD: dict[str, list[Tensor]] = {
    "score": TEXTS,
    "tokenizer": TEXTS,
    "scorer": [
        ("input_ids", "INT32", [1, 5], numbers(11, 12, 0, 13, 0)),
        ("delimiter_indices", "INT32", [1, 2], numbers(2, 4)),
        ("label_token_ids", "INT32", [1, 2], numbers(5, 6)),
    ],
    "decode": [("input_ids", "INT32", [3], numbers(11, 12, 13))],
}
NAMES = [
    *sorted({name for tensors in GOOD.values() for name, *_ in tensors}),
    "labels",
    "text_input",
    "x",
    "",
]
OF_DECODE = ("max_tokens", "top_k", "top_p", "seed", "stop", "sparse")
KNOWN = ["apply_softmax", "temperature", "item_first", *OF_DECODE]
VALUES = st.one_of(
    st.booleans().map(lambda value: {"bool_param": value}),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: {"int64_param": value}),
    st.integers(0, 2**64 - 1).map(lambda value: {"uint64_param": value}),
    st.floats().map(lambda value: {"double_param": value}),
    st.text(max_size=20).map(lambda value: {"string_param": value}),
    st.just({}),
)


@st.composite
def wrong(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """A tensor with some part of it changed: most often two of them no longer fit each other."""
    name, datatype, shape, raw = tensor
    match draw(st.sampled_from(["name", "type", "shape", "cut", "bytes", "ids", "texts"])):
        case "name":
            name = draw(st.sampled_from(NAMES))
        case "type":
            datatype = draw(st.sampled_from(TYPES))
        case "shape":
            shape = draw(st.lists(st.integers(-2, 5), max_size=4))
        case "cut":
            raw = raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=5))
        case "bytes":
            place = draw(st.integers(0, max(len(raw) - 4, 0)))
            raw = raw[:place] + draw(st.binary(min_size=4, max_size=4)) + raw[place + 4 :]
        case "ids":
            ids = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8))
            datatype, shape, raw = "INT32", [*shape[:-1], len(ids)], numbers(*ids)
        case "texts":
            texts = draw(st.lists(st.binary(max_size=6), max_size=4))
            datatype, shape, raw = "BYTES", [*shape[:-1], len(texts)], words(*texts)
    return name, datatype, shape, raw


@st.composite
def calls(draw: st.DrawFn, model: str) -> service_pb2.ModelInferRequest:
    """A good call with up to three things wrong, or none."""
    tensors = list(GOOD[model])
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, max(len(tensors) - 1, 0)))
        match draw(st.sampled_from(["change", "change", "change", "drop", "double"])):
            case "drop":
                tensors = tensors[:place] + tensors[place + 1 :]
            case "double":
                tensors += tensors[place : place + 1]
            case _ if tensors:
                tensors[place] = draw(wrong(tensors[place]))
    names = st.sampled_from(KNOWN) | st.text(max_size=8)
    parameters = draw(st.just({}) | st.dictionaries(names, VALUES, max_size=3))
    request = request_of(model, tensors, parameters)
    request.id = draw(st.just("") | st.text(max_size=9))
    # Sometimes as many raw contents as there are not tensors.
    if not draw(st.integers(0, 9)) and request.raw_input_contents:
        del request.raw_input_contents[-1]
    return request


def request_of(
    model: str, tensors: list[Tensor], parameters: dict[str, dict[str, Any]]
) -> service_pb2.ModelInferRequest:
    inputs = [
        service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape, _ in tensors
    ]
    values = {name: service_pb2.InferParameter(**value) for name, value in parameters.items()}
    raw = [raw for *_, raw in tensors]
    return service_pb2.ModelInferRequest(
        model_name=model, inputs=inputs, parameters=values, raw_input_contents=raw
    )


@pytest.fixture(scope="module")
def stub(abused: Server, tiny_lm: Path) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """A channel, with good calls all the while, and a stream at the end."""
    with grpc.insecure_channel(abused.grpc_url) as channel, good_calls_beside(abused, tiny_lm) as beside:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.beside = beside
        yield stub
    assert len(over_grpc(abused, {"input_ids": [11, 12]}, max_tokens=5, ignore_eos=True).ids) == 5


def outcome(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, request: service_pb2.ModelInferRequest
) -> tuple[str, str]:
    """The code and the message of a call; OK and how many responses it had."""
    try:
        if request.model_name != "decode":
            stub.ModelInfer(request, timeout=TIMEOUT_S)
            return "OK", "1"
        # Without triton_grpc_error, under which errors of streams sometimes end Triton 2.51.
        responses = list(stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S))
        errors = [response.error_message for response in responses if response.error_message]
        return ("INVALID_ARGUMENT", errors[0]) if errors else ("OK", str(len(responses)))
    except grpc.RpcError as error:
        return error.code().name, error.details()


@pytest.mark.parametrize("model", GOOD)
def test_any_call_gets_an_answer_or_an_error_of_its_own(
    model: str, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    seen: set[str] = set()

    @settings(max_examples=100, derandomize=True, database=None)
    @given(calls(model))
    def play(request: service_pb2.ModelInferRequest) -> None:
        code, message = outcome(stub, request)
        assert code in {"OK", *REFUSALS}, (code, message)
        assert message
        assert FAULT not in message
        assert not leak(message), message
        stub.beside.check()
        seen.add(code)

    play()
    # The control: both kinds are among them.
    assert {"OK", "INVALID_ARGUMENT"} <= seen


@pytest.mark.parametrize("model", GOOD)
def test_control_a_good_call_is_answered(model: str, stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    code, message = outcome(stub, request_of(model, GOOD[model], {}))
    assert code == "OK", message
    assert int(message) >= 1


def test_no_name_and_no_version_of_a_model_are_an_error(
    stub: service_pb2_grpc.GRPCInferenceServiceStub,
) -> None:
    for name, version in (("", ""), ("x", ""), ("../scorer", ""), ("scorer", "2"), ("scorer", "x" * 999)):
        request = request_of("scorer", GOOD["scorer"], {})
        request.model_name, request.model_version = name, version
        code, message = outcome(stub, request)
        assert code in REFUSALS, message
        assert not leak(message), message


def test_bytes_that_are_no_message_are_an_error(
    abused: Server, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    good = request_of("scorer", GOOD["scorer"], {}).SerializeToString()

    @settings(max_examples=100, derandomize=True, database=None)
    @given(st.integers(0, len(good) - 1), st.binary(min_size=1, max_size=9))
    def play(place: int, other: bytes) -> None:
        call = send.future(good[:place] + other + good[place + len(other) :], timeout=TIMEOUT_S)
        assert call.exception() is None or call.code().name in REFUSALS, call
        assert not leak(call.details()), call
        stub.beside.check()

    with grpc.insecure_channel(abused.grpc_url) as channel:
        # Without serialisers, so that bytes are sent as they are.
        send = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert send(good, timeout=TIMEOUT_S)
        play()
