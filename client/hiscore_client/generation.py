"""A generation: its request, and the chunks that are streamed back."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hiscore_client.config import ClientConfig
from hiscore_client.deadline import Deadline
from hiscore_client.errors import InvalidRequest
from hiscore_client.generated import Chunk, parse_chunk
from hiscore_client.inference import id_tensor, make_request, text_tensor
from hiscore_client.retry import RetryPolicy, call_with_retries
from hiscore_client.sans_io import Operation, Rpc
from hiscore_client.tensors import IdArray, TokenIds, as_id_array, encode_text, encode_texts

MODEL = "decode"
# A generation that has started is not retried: the caller has already seen part of it.
NO_RETRY = RetryPolicy(attempts=1)
# The server ends a stream at its deadline, and the connection must not end it at the same time: Triton 2.51 leaks
# a stream that is cancelled while it ends, or aborts. So the connection's deadline is some seconds later.
GRACE_S = 2.0
INT64 = np.iinfo(np.int64)

Parameters: TypeAlias = dict[str, bool | int | float | str]


@dataclass(frozen=True)
class GenerationOptions:
    """Sampling and the ends of a text; options at their default are not sent, but for `max_tokens`."""

    max_tokens: int | None = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    sparse: bool = True
    others: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def parameters(self) -> Parameters:
        """The request parameters; the server checks their bounds.

        Raises:
            InvalidRequest: A value that cannot be sent.
        """
        given: Parameters = {}
        for name, value in self.others.items():
            given[name] = _as_parameter(name, value)
        default = GenerationOptions()
        if self.max_tokens is not None:
            given["max_tokens"] = _as_int("max_tokens", self.max_tokens)
        for name in ("top_k", "seed"):
            if (value := getattr(self, name)) != getattr(default, name):
                given[name] = _as_int(name, value)
        for name in ("temperature", "top_p"):
            if (value := getattr(self, name)) != getattr(default, name):
                given[name] = _as_float(name, value)
        for name in ("ignore_eos", "sparse"):
            if (value := bool(getattr(self, name))) != getattr(default, name):
                given[name] = value
        if len(self.stop):
            encode_texts("stop", self.stop)
            given["stop"] = json.dumps(list(self.stop))
        if len(self.stop_token_ids):
            given["stop_token_ids"] = json.dumps(
                as_id_array("'stop_token_ids'", self.stop_token_ids).tolist()
            )
        return given


def _as_parameter(name: str, value: Any) -> bool | int | float | str:
    if isinstance(value, str):
        encode_text(f"'{name}'", value)
        return value
    if isinstance(value, bool):
        return value
    return _as_int(name, value) if isinstance(value, int | np.integer) else _as_float(name, value)


def _as_int(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or not INT64.min <= value <= INT64.max:
        raise InvalidRequest(f"'{name}' must be a whole number of 64 bits, not {value!r}")
    return int(value)


def _as_float(name: str, value: Any) -> float:
    # Triton hands parameters to a model as JSON, which has no NaN and no infinity.
    if not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise InvalidRequest(f"'{name}' must be a finite number, not {value!r}")
    return float(value)


@dataclass(frozen=True)
class Generation:
    """One call of `decode`; the tries up to the first chunk and all later chunks share one deadline.

    Args:
        prompt: Token ids, or text as UTF-8.
        deadline: When the whole stream must have ended.
    """

    config: ClientConfig
    prompt: IdArray | bytes
    parameters: Parameters
    deadline: Deadline
    request_id: str

    def first_chunk(self) -> Operation[Chunk]:
        """Open the stream and read the first chunk."""

        def open_stream(remaining: float) -> Rpc:
            timeout = None if math.isinf(remaining) else remaining
            request, metadata = self._request(timeout), tuple(self.config.metadata().items())
            stream_timeout = None if timeout is None else timeout + GRACE_S
            return Rpc("open", {"request": request, "timeout": stream_timeout, "metadata": metadata})

        response = yield from call_with_retries(
            open_stream, self.deadline, self.config.retry, self.config.url, self.request_id
        )
        return parse_chunk(response)

    def next_chunk(self) -> Operation[Chunk]:
        """Read the next chunk."""
        read = Rpc("read", {})
        deadline = self.deadline.extended(GRACE_S)
        response = yield from call_with_retries(
            lambda remaining: read, deadline, NO_RETRY, self.config.url, self.request_id
        )
        return parse_chunk(response)

    def _request(self, timeout: float | None) -> Any:
        prompt = (
            text_tensor("text_input", [self.prompt], batch=False)
            if isinstance(self.prompt, bytes)
            else id_tensor("input_ids", self.prompt, batch=False)
        )
        # At its timeout the server ends the generation, which no caller waits for any more.
        return make_request(MODEL, [prompt], self.parameters, self.request_id, timeout)


def make_generation(
    config: ClientConfig,
    prompt: str | TokenIds,
    options: GenerationOptions,
    timeout: float | None,
    request_id: str,
) -> Generation:
    """Build a call of the model ``decode``.

    Args:
        timeout: Seconds for the whole stream; None: no limit.

    Raises:
        InvalidRequest: An argument that cannot be sent.
    """
    return Generation(
        config=config,
        prompt=encode_text("'prompt'", prompt)
        if isinstance(prompt, str)
        else as_id_array("'prompt'", prompt),
        parameters=options.parameters(),
        deadline=Deadline(timeout),
        request_id=request_id,
    )
