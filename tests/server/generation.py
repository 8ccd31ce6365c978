"""One generation over a gRPC stream or /generate_stream, without our client: tests see the wire itself."""

import http.client
import json
import queue
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from hiscore.errors import Code
from hiscore.launcher import Server
from tests.server.wire import HTTP_CODES, Refused
from tests.support.timeouts import TIMEOUT_S


@dataclass(frozen=True)
class Response:
    """One response of a stream; last: it carries Triton's final flag (HTTP does not show that: None)."""

    ids: list[int]
    text: str
    reason: str
    last: bool | None


@dataclass(frozen=True)
class Generation:
    """All responses of a finished generation."""

    responses: list[Response]

    @property
    def ids(self) -> list[int]:
        return [token for response in self.responses for token in response.ids]

    @property
    def text(self) -> str:
        return "".join(response.text for response in self.responses)

    @property
    def reason(self) -> str:
        """The finish reason; only the last response has one."""
        assert all(response.reason == "" for response in self.responses[:-1])
        return self.responses[-1].reason


def tensors(inputs: Mapping[str, Any]) -> list[Any]:
    """Inputs of `decode`: ids, or one text; an array is sent unchanged."""
    made = []
    for name, value in inputs.items():
        text = name == "text_input"
        array = value if isinstance(value, np.ndarray) else np.array(value, np.object_ if text else np.int32)
        array = array.reshape(-1) if text and not isinstance(value, np.ndarray) else array
        made.append(tritonclient.grpc.InferInput(name, list(array.shape), "BYTES" if text else "INT32"))
        made[-1].set_data_from_numpy(array)
    return made


@contextmanager
def grpc_stream(
    server: Server, inputs: Mapping[str, Any], timeout_us: int | None = None, **parameters: Any
) -> Iterator[Iterator[Response]]:
    """The responses as they come, or `Refused`; leaving the block cancels what still runs."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ended = False
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: answers.put(error or result))

    def responses() -> Iterator[Response]:
        nonlocal ended
        while not ended:
            answer = answers.get(timeout=TIMEOUT_S)
            if isinstance(answer, InferenceServerException):
                ended = True
                raise _refused(str(answer.message()))
            last = ended = answer.get_response().parameters["triton_final_response"].bool_param
            yield Response(
                answer.as_numpy("output_ids").tolist(),
                answer.as_numpy("text_output")[0].decode(),
                answer.as_numpy("finish_reason")[0].decode(),
                last,
            )

    try:
        client.async_stream_infer(
            "decode", tensors(inputs), parameters=parameters or None, timeout=timeout_us, request_id="mine"
        )
        yield responses()
    finally:
        # Triton 2.51 never frees a stream that is cancelled just as it ends, which delays shutdown.
        client.stop_stream(cancel_requests=not ended)
        client.close()


def answers_of(
    server: Server, tensors: list[Any], request_id: str = "", **parameters: Any
) -> list[tritonclient.grpc.InferResult | InferenceServerException]:
    """All answers and errors of a stream, as they are."""
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("decode", tensors, request_id=request_id, parameters=parameters or None)
        client.stop_stream()
    return answers


def over_grpc(server: Server, inputs: Mapping[str, Any], **parameters: Any) -> Generation:
    with grpc_stream(server, inputs, **parameters) as responses:
        return Generation(list(responses))


@contextmanager
def http_stream(server: Server, inputs: Mapping[str, Any], **parameters: Any) -> Iterator[Iterator[Response]]:
    """As `grpc_stream`, from server-sent events; leaving the block closes the connection."""
    connection = http.client.HTTPConnection(server.http_address, timeout=TIMEOUT_S)
    body = json.dumps({**inputs, **parameters})
    try:
        connection.request("POST", "/v2/models/decode/generate_stream", body)
        answer = connection.getresponse()
        if answer.status != 200:
            error = _refused(_error(answer.read()))
            assert HTTP_CODES[answer.status] == error.code or answer.status == 400
            raise error

        def responses() -> Iterator[Response]:
            for line in answer:
                if line.strip():
                    assert line.startswith(b"data: "), line
                    event = json.loads(line.removeprefix(b"data: "))
                    if "error" in event:
                        # After the status has been sent, an error is one more event.
                        raise _refused(event["error"])
                    ids = event["output_ids"]
                    yield Response(
                        ids if isinstance(ids, list) else [ids],
                        event["text_output"],
                        event["finish_reason"],
                        None,
                    )

        yield responses()
    finally:
        connection.close()


def _refused(text: str) -> Refused:
    """A stream's error, which begins with its code where it is ours."""
    code, _, message = text.partition(": ")
    known = {code.value: code.value for code in Code} | {"INVALID_ARG": "INVALID_ARGUMENT"}
    return Refused(known[code], message) if code in known else Refused("", text)


def _error(body: bytes) -> str:
    return str(json.loads(body.removeprefix(b"data: "))["error"])


def over_http(server: Server, inputs: Mapping[str, Any], **parameters: Any) -> Generation:
    with http_stream(server, inputs, **parameters) as responses:
        return Generation(list(responses))


WAYS = {"grpc": over_grpc, "http": over_http}


def whole(server: Server, inputs: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
    """The outputs of a call with `stream` false, over /generate, which takes exactly one response."""
    body = json.dumps({**inputs, **parameters, "stream": False}).encode()
    with urllib.request.urlopen(f"{server.http_url}/v2/models/decode/generate", body, TIMEOUT_S) as answer:
        return dict(json.loads(answer.read()))
