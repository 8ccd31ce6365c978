"""Calls to `scorer` by token ids, drawn at random and serialised ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from hiscore.scoring.requests.layout import lay_out
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest

Float32 = npt.NDArray[np.float32]
INPUTS = ("input_ids", "delimiter_indices", "label_token_ids")


@dataclass(frozen=True)
class Shape:
    """The size of a call: tokens of the query, number of items, tokens of each item."""

    query: int
    items: int
    item: int

    @property
    def tokens(self) -> int:
        return self.query + self.items * self.item

    def __str__(self) -> str:
        return f"{self.query} + {self.items} x {self.item}"


@dataclass(frozen=True)
class Ids:
    """One call: token ids of the query, of each item, of the labels."""

    query: list[int]
    items: list[list[int]]
    labels: tuple[int, ...]

    def request(self) -> ScoreRequest:
        """The call as the scorer takes it, for softmax over the labels."""
        prompt = MultiItemPrompt.of(self.query, self.items)
        return ScoreRequest(prompt, np.array(self.labels, np.int32), ScoreOptions(apply_softmax=True))

    def tensors(self) -> dict[str, npt.NDArray[np.int32]]:
        """The inputs of `scorer` by name, each int32 [n]."""
        ids, delimiters = lay_out(MultiItemPrompt.of(self.query, self.items))
        return dict(zip(INPUTS, (ids, delimiters, np.array(self.labels, np.int32)), strict=True))

    def message(self) -> bytes:
        """The call as a serialised gRPC message."""
        return infer_message(self.tensors())

    def entry(self) -> dict[str, Any]:
        """The call as an entry of perf_analyzer's data file."""
        return {
            name: {"content": values.tolist(), "shape": [len(values)]}
            for name, values in self.tensors().items()
        }


def infer_message(tensors: dict[str, npt.NDArray[np.int32]]) -> bytes:
    """Serialise a ModelInfer request to `scorer` for softmax over the labels."""
    request = service_pb2.ModelInferRequest(model_name="scorer")
    request.parameters["apply_softmax"].bool_param = True
    for name, values in tensors.items():
        request.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        request.raw_input_contents.append(values.tobytes())
    return bytes(request.SerializeToString())


def draw(
    rng: np.random.Generator,
    shape: Shape,
    count: int,
    vocabulary: int,
    labels: Sequence[int],
    one_query: bool = False,
) -> list[Ids]:
    """Draw random calls.

    Args:
        vocabulary: Ids are below this.
        one_query: Give all calls the same query; their items still differ.
    """

    def ids(length: int) -> list[int]:
        drawn: list[int] = rng.integers(0, vocabulary, length).tolist()
        return drawn

    shared = ids(shape.query)
    return [
        Ids(
            shared if one_query else ids(shape.query),
            [ids(shape.item) for _ in range(shape.items)],
            tuple(labels),
        )
        for _ in range(count)
    ]


def read_answer(message: bytes) -> tuple[Float32, int]:
    """Parse a ModelInfer response: scores, float32 [items, labels], and the number of cached tokens."""
    response = service_pb2.ModelInferResponse.FromString(message)
    raw = {
        output.name: (list(output.shape), content)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    shape, content = raw["scores"]
    usage = np.frombuffer(raw["usage"][1], np.int32)
    return np.frombuffer(content, np.float32).reshape(shape[1:]), int(usage[1])
