"""The message of an inference, against tritonclient's own, and its answer."""

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput, InferResult, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from hiscore_client import ServerFault
from hiscore_client.inference import id_tensor, make_request, numbers_of, text_tensor

IDS = np.array([5, 0, 2**31 - 1], np.int32)
TEXTS = ["größer".encode(), b"", b"x" * 300]


def theirs(name: str, values: np.ndarray, datatype: str) -> InferInput:
    made = InferInput(name, [1, values.shape[1]], datatype)
    made.set_data_from_numpy(values)
    return made


def test_a_message_is_tritonclients_own_to_the_byte() -> None:
    texts = np.empty((1, len(TEXTS)), np.object_)
    texts[0, :] = TEXTS
    parameters: dict[str, Any] = {
        "apply_softmax": True,
        "temperature": 0.5,
        "top_k": 3,
        "label_counts": "[1]",
    }
    expected = _get_inference_request(
        "scorer", [theirs("ids", IDS[np.newaxis], "INT32"), theirs("items", texts, "BYTES")],
        "", "mine", None, 0, False, False, 2, 1_500_000, parameters,
    )  # fmt: skip
    tensors = [id_tensor("ids", IDS), text_tensor("items", TEXTS)]
    found = make_request("scorer", tensors, parameters, "mine", 1.5, 2)
    assert found.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    # Control: one id more is another message.
    other = make_request("scorer", [id_tensor("ids", IDS[:2]), tensors[1]], parameters, "mine", 1.5, 2)
    assert other.SerializeToString(deterministic=True) != expected.SerializeToString(deterministic=True)


def answer(*outputs: tuple[str, str, list[int], bytes]) -> Any:
    response = service_pb2.ModelInferResponse()
    for name, datatype, shape, content in outputs:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(content)
    return response


def test_numbers_are_those_that_tritonclient_reads() -> None:
    values = np.random.default_rng(0).standard_normal((1, 4, 3)).astype(np.float32)
    response = answer(
        ("usage", "INT32", [1, 3], IDS.tobytes()), ("scores", "FP32", [1, 4, 3], values.tobytes())
    )
    for name in ("usage", "scores"):
        expected = InferResult(response).as_numpy(name)
        found = numbers_of(response, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (("other", "FP32", [1], bytes(4)), "has no 'scores'"),
        (("scores", "FP32", [2], bytes(4)), "does not fit"),
        (("scores", "FP32", [1], bytes(3)), "does not fit"),
        (("scores", "BYTES", [1], bytes(4)), "BYTES"),
        (("scores", "NONE", [1], bytes(4)), "NONE"),
    ],
)
def test_an_answer_without_those_numbers_is_a_server_fault(output: Any, message: str) -> None:
    with pytest.raises(ServerFault, match=message):
        numbers_of(answer(output), "scores")


def test_an_answer_without_data_is_a_server_fault() -> None:
    response = answer(("scores", "FP32", [1], bytes(4)))
    del response.raw_output_contents[:]
    with pytest.raises(ServerFault, match="without data"):
        numbers_of(response, "scores")
