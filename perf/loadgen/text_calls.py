"""Calls by text, and the same calls by the ids that the `tokenizer` model gives them."""

from collections.abc import Sequence

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2

from perf.loadgen.scorer_calls import INPUTS, Shape, infer_message

WORDS = [
    "apple",
    "bread",
    "cloud",
    "engine",
    "garden",
    "hammer",
    "river",
    "violin",
    "window",
    "pepper",
    "copper",
    "marble",
    "winter",
    "summer",
]


def draw_texts(rng: np.random.Generator, shape: Shape, count: int) -> list[tuple[str, list[str]]]:
    """Draw queries and items of random words, about a token each; every query begins with a unique number."""

    def words(length: int) -> str:
        return "".join(f" {word}" for word in rng.choice(WORDS, length))

    return [
        (f"{rng.integers(10**12)}:{words(shape.query - 13)}", [words(shape.item) for _ in range(shape.items)])
        for _ in range(count)
    ]


def text_message(query: str, items: Sequence[str], labels: Sequence[int]) -> bytes:
    """Serialise a ModelInfer request to `score` for softmax over the labels."""
    texts = {"query": [query], "items": items}
    request = service_pb2.ModelInferRequest(model_name="score")
    request.parameters["apply_softmax"].bool_param = True
    for name, values in texts.items():
        request.inputs.add(name=name, datatype="BYTES", shape=[1, len(values)])
        request.raw_input_contents.append(b"".join(_sized(value.encode()) for value in values))
    request.inputs.add(name="label_token_ids", datatype="INT32", shape=[1, len(labels)])
    request.raw_input_contents.append(np.array(labels, np.int32).tobytes())
    return bytes(request.SerializeToString())


def as_ids_message(
    client: InferenceServerClient, query: str, items: Sequence[str], labels: Sequence[int]
) -> bytes:
    """The request to `scorer` by the ids of a call by text."""
    inputs = [_strings("query", [query]), _strings("items", items)]
    inputs.append(InferInput("label_token_ids", [1, len(labels)], "INT32"))
    inputs[-1].set_data_from_numpy(np.array([labels], np.int32))
    answer = client.infer("tokenizer", inputs)
    return infer_message({name: answer.as_numpy(name)[0] for name in INPUTS})


def _strings(name: str, values: Sequence[str]) -> InferInput:
    tensor = InferInput(name, [1, len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([[value.encode() for value in values]], np.object_))
    return tensor


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value
