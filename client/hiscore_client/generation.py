"""One generation: its request, and the chunks that come back one after the other."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import InferResult, service_pb2

from hiscore_client.errors import InvalidRequest, ServerFault
from hiscore_client.retry import Deadline, RetryPolicy, attempts
from hiscore_client.steps import Ask, Steps
from hiscore_client.wire import Ids, as_ids, encode_texts

MODEL = "decode"
# What has begun is not tried again: the caller has seen a part of it.
ONCE = RetryPolicy(attempts=1)
# The server ends a stream at its deadline. The connection must not do so just then: a stream that is cancelled
# while it ends is held by Triton 2.51 for ever, or makes it abort. So it gives the server some seconds more.
GRACE_S = 2.0
INT64 = np.iinfo(np.int64)

Parameters = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class Chunk:
    """What is new: text, the ids of the tokens, and in the last chunk why it is the last.

    The text lags behind the ids where a character or a stop string may be incomplete. finish_reason: empty until
    the last chunk, then ``stop``, ``length`` or ``cancelled``.
    """

    text: str
    token_ids: list[int]
    finish_reason: str


@dataclass(frozen=True)
class GenerationOptions:
    """How tokens are chosen and when to stop; what is at its default does not go onto the wire."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    sparse: bool = True

    def parameters(self) -> Parameters:
        """The request parameters; their bounds are for the server to check.

        Raises:
            InvalidRequest: what has no form on the wire.
        """
        given: Parameters = {}
        default = GenerationOptions()
        for name in ("max_tokens", "top_k", "seed"):
            if (value := getattr(self, name)) != getattr(default, name):
                given[name] = _whole(name, value)
        for name in ("temperature", "top_p"):
            if (value := getattr(self, name)) != getattr(default, name):
                given[name] = _finite(name, value)
        for name in ("ignore_eos", "sparse"):
            if (value := bool(getattr(self, name))) != getattr(default, name):
                given[name] = value
        if len(self.stop):
            encode_texts("stop", self.stop)
            given["stop"] = json.dumps(list(self.stop))
        if len(self.stop_token_ids):
            given["stop_token_ids"] = json.dumps(as_ids("'stop_token_ids'", self.stop_token_ids).tolist())
        return given


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or not INT64.min <= value <= INT64.max:
        raise InvalidRequest(f"'{name}' must be a whole number of 64 bits, not {value!r}")
    return int(value)


def _finite(name: str, value: Any) -> float:
    # NaN and infinity have no form in the JSON in which Triton hands parameters to a model.
    if not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise InvalidRequest(f"'{name}' must be a finite number, not {value!r}")
    return float(value)


@dataclass(frozen=True)
class Generation:
    """One prompt, in ids or in UTF-8, on its way; tries before the first chunk and all chunks share a deadline."""

    prompt: Ids | bytes
    parameters: Parameters
    deadline: Deadline
    request_id: str
    url: str
    retry: RetryPolicy
    headers: Mapping[str, str]

    def first(self) -> Steps[Chunk]:
        """The steps that open the stream and get the first chunk."""

        def ask(remaining: float) -> Ask:
            timeout = None if math.isinf(remaining) else remaining
            request, metadata = self._request(timeout), tuple(self.headers.items())
            patience = None if timeout is None else timeout + GRACE_S
            return Ask("open", {"request": request, "timeout": patience, "metadata": metadata})

        answer = yield from attempts(ask, self.deadline, self.retry, self.url, self.request_id)
        return read_chunk(answer)

    def next(self) -> Steps[Chunk]:
        """The steps that get the next chunk."""
        read = Ask("read", {})
        deadline = self.deadline.later(GRACE_S)
        answer = yield from attempts(lambda remaining: read, deadline, ONCE, self.url, self.request_id)
        return read_chunk(answer)

    def _request(self, timeout: float | None) -> Any:
        request = service_pb2.ModelInferRequest(model_name=MODEL, id=self.request_id)
        if isinstance(self.prompt, bytes):
            request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            request.raw_input_contents.append(len(self.prompt).to_bytes(4, "little") + self.prompt)
        else:
            request.inputs.add(name="input_ids", datatype="INT32", shape=[len(self.prompt)])
            request.raw_input_contents.append(self.prompt.astype("<i4").tobytes())
        fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
        for name, value in self.parameters.items():
            setattr(request.parameters[name], fields[type(value)], value)
        if timeout is not None:
            # Microseconds, so that the server does not go on with what nobody waits for.
            request.parameters["timeout"].int64_param = max(1, int(timeout * 1e6))
        return request


def read_chunk(response: Any) -> Chunk:
    """Read one response of the stream, a ``ModelInferResponse``; None: the stream has ended.

    Raises:
        ServerFault: the outputs do not have the promised shapes and types, or the end came too early.
    """
    if response is None:
        raise ServerFault("the stream ended without a 'finish_reason'")
    answer = InferResult(response)
    ids = answer.as_numpy("output_ids")
    if ids is None or ids.ndim != 1 or ids.dtype != np.int32:
        raise ServerFault("'output_ids' must come back as int32 [n]")
    return Chunk(_text(answer, "text_output"), ids.tolist(), _text(answer, "finish_reason"))


def _text(answer: Any, name: str) -> str:
    values = answer.as_numpy(name)
    if values is None or values.shape != (1,) or values.dtype != np.object_:
        raise ServerFault(f"'{name}' must come back as one string")
    try:
        return str(values[0].decode("utf-8"))
    except UnicodeDecodeError:
        raise ServerFault(f"'{name}' came back with broken characters") from None
