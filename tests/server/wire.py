"""One call over gRPC, HTTP with binary tensors or /generate, without our client: tests see the wire itself."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from hiscore.launcher import Server
from hiscore.scoring.requests.layout import lay_out
from hiscore.scoring.requests.request import MultiItemPrompt
from tests.support.strategies import Tokens

Inputs = Mapping[str, Any]
Outputs = dict[str, np.ndarray]

HTTP_CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 500: "INTERNAL", 503: "UNAVAILABLE"}


class Refused(Exception):
    """The server's error; code: gRPC's name for it, whichever way it came."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Answer:
    """scores: float32 [items, labels]; usage in tokens."""

    scores: np.ndarray
    prompt_tokens: int
    cached_tokens: int


def row(values: Any) -> np.ndarray:
    """Strings, bytes or ids as the only row of a tensor; an array is sent unchanged."""
    if isinstance(values, np.ndarray):
        return values
    if values and isinstance(values[0], str | bytes):
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        return np.array(texts, np.object_)[None]
    return np.array(values, np.int32)[None]


def over_grpc(server: Server, model: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    return _over_triton(tritonclient.grpc, server.grpc_url, model, inputs, parameters)


def over_http(server: Server, model: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    return _over_triton(tritonclient.http, server.http_address, model, inputs, parameters)


def _over_triton(module: Any, url: str, model: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    tensors = []
    for name, values in inputs.items():
        array = row(values)
        # An empty list does not say what it holds.
        strings = array.dtype == np.object_ or (name in ("query", "items", "labels") and not array.size)
        array = array.astype(np.object_) if strings else array
        tensors.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    client = module.InferenceServerClient(url)
    try:
        answer = client.infer(model, tensors, parameters=dict(parameters) or None)
        response = answer.get_response()
        outputs = response["outputs"] if isinstance(response, dict) else response.outputs
        names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
        return {name: answer.as_numpy(name) for name in names}
    except InferenceServerException as error:
        status = str(error.status()).removeprefix("StatusCode.")
        code = HTTP_CODES[int(status)] if status.isdigit() else status
        raise Refused(code, str(error.message())) from None
    finally:
        client.close()


def over_generate(server: Server, model: str, inputs: Inputs, parameters: Mapping[str, Any]) -> Outputs:
    return post(server, model, json.dumps({**inputs, **parameters}).encode())


def post(server: Server, model: str, body: bytes) -> Outputs:
    request = urllib.request.Request(f"{server.http_url}/v2/models/{model}/generate", data=body)
    try:
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise Refused(HTTP_CODES[error.code], json.load(error)["error"]) from None
    # Triton writes a tensor of one element as that element.
    return {
        name: np.atleast_1d(
            np.array(answer[name], np.float32 if name in ("scores", "probabilities") else np.int32)
        )
        for name in answer.keys() - {"id", "model_name", "model_version"}
        if not name.startswith("sequence_")
    }


Way = Callable[[Server, str, Inputs, Mapping[str, Any]], Outputs]
WAYS: dict[str, Way] = {"grpc": over_grpc, "http": over_http, "generate": over_generate}


def score(
    server: Server, model: str, inputs: Inputs, shape: tuple[int, int], way: str = "grpc", **parameters: Any
) -> Answer:
    """A call of `score` or `scorer`; shape: the (items, labels) that its scores must have."""
    outputs = WAYS[way](server, model, inputs, parameters)
    assert set(outputs) == {"scores", "usage"}
    scores, usage = outputs["scores"], outputs["usage"]
    assert scores.dtype == np.float32
    assert usage.dtype == np.int32
    if way == "generate":
        # Flat, row-major.
        assert scores.shape == (shape[0] * shape[1],)
        assert usage.shape == (2,)
    else:
        assert scores.shape == (1, *shape)
        assert usage.shape == (1, 2)
    return Answer(scores.reshape(shape), *map(int, usage.ravel()))


def score_texts(
    server: Server,
    query: str,
    items: Sequence[str],
    labels: Sequence[str] | Sequence[int] = (),
    way: str = "grpc",
    columns: int | None = None,
    model: str = "score",
    **parameters: Any,
) -> Answer:
    """A call of `score`, its labels by name or by id; columns: of a classifier, which takes no labels."""
    inputs: dict[str, Any] = {"query": [query], "items": list(items)}
    if labels:
        inputs["labels" if isinstance(labels[0], str) else "label_token_ids"] = list(labels)
    return score(server, model, inputs, (len(items), columns or len(labels)), way, **parameters)


def score_tokens(
    server: Server,
    tokens: Tokens,
    labels: Sequence[int] = (),
    way: str = "grpc",
    columns: int | None = None,
    **parameters: Any,
) -> Answer:
    """A call of `scorer`."""
    ids, indices = lay_out(MultiItemPrompt.of(tokens.query, tokens.items))
    inputs = {
        "input_ids": ids.tolist(),
        "delimiter_indices": indices.tolist(),
        "label_token_ids": list(labels),
    }
    return score(server, "scorer", inputs, (len(tokens.items), columns or len(labels)), way, **parameters)
