"""The chunks that a generation streams back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc import InferResult

from hiscore_client.errors import ServerFault


@dataclass(frozen=True)
class Chunk:
    """The new part of a generation.

    Args:
        text: New text. It lags behind the ids while a character or a stop string may be incomplete.
        token_ids: New tokens.
        finish_reason: Empty until the last chunk, then ``stop``, ``length`` or ``cancelled``.
        logprobs: With the parameter ``logprobs``, the log-probability of each token.
        top_token_ids: With ``logprobs`` above 0, so many likely tokens in place of each, the likeliest first.
        top_logprobs: Their log-probabilities.
        cached_tokens: How many of these came from a cache.
        output_tokens: Tokens generated so far.
        matched_stop: In the last chunk, the stop string that ended the text.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    logprobs: list[float] = field(default_factory=list)
    top_token_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    matched_stop: str = ""


def parse_chunk(response: Any) -> Chunk:
    """Read and check one response of the stream.

    Args:
        response: A ``ModelInferResponse``; None: the stream has ended.

    Raises:
        ServerFault: The outputs do not have the promised shapes and types, or the stream ended too early.
    """
    if response is None:
        raise ServerFault("the stream ended without a 'finish_reason'")
    outputs = InferResult(response)
    ids = outputs.as_numpy("output_ids")
    if ids is None or ids.ndim != 1 or ids.dtype != np.int32:
        raise ServerFault("'output_ids' must come back as int32 [n]")
    usage = _of_each(outputs, "usage", 1)
    prompt_tokens, cached_tokens, output_tokens = usage if len(usage) == 3 else (0, 0, 0)
    return Chunk(
        _text(outputs, "text_output"),
        ids.tolist(),
        _text(outputs, "finish_reason"),
        _of_each(outputs, "output_logprobs", 1),
        _of_each(outputs, "top_token_ids", 2),
        _of_each(outputs, "top_logprobs", 2),
        prompt_tokens,
        cached_tokens,
        output_tokens,
        _text(outputs, "matched_stop", optional=True),
    )


def _of_each(outputs: Any, name: str, dimensions: int) -> list[Any]:
    """The numbers of an output; none if the server is older than that."""
    values = outputs.as_numpy(name)
    if values is None:
        return []
    if values.ndim != dimensions:
        raise ServerFault(f"'{name}' must come back with {dimensions} dimensions, not {values.ndim}")
    numbers: list[Any] = values.tolist()
    return numbers


def _text(outputs: Any, name: str, optional: bool = False) -> str:
    values = outputs.as_numpy(name)
    if optional and values is None:
        return ""
    if values is None or values.shape != (1,) or values.dtype != np.object_:
        raise ServerFault(f"'{name}' must come back as one string")
    try:
        return str(values[0].decode("utf-8"))
    except UnicodeDecodeError:
        raise ServerFault(f"'{name}' came back with broken characters") from None
