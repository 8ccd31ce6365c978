"""Parameters of ``decode`` that ``generate`` takes by name beside its own."""

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from hiscore_client.errors import InvalidRequest


class DecodeParameters(TypedDict, total=False):
    """Parameters of `decode`, described in `docs/decoding.md`; one that is None has the server's default."""

    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    min_tokens: int | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    ebnf: str | None
    logprobs: int | None
    add_special_tokens: bool
    stream: bool


def to_wire(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn these parameters into values that Triton can carry.

    Raises:
        TypeError: There is no parameter of that name.
        InvalidRequest: A dictionary that is no JSON.
    """
    unknown = sorted(set(given) - set(DecodeParameters.__annotations__))
    if unknown:
        raise TypeError(f"generate() got an unexpected keyword argument '{unknown[0]}'")
    return {
        name: _to_json(name, value) if isinstance(value, Mapping) else value
        for name, value in given.items()
        if value is not None
    }


def _to_json(name: str, value: Mapping[Any, Any]) -> str:
    try:
        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"'{name}' must hold what JSON can: {error}") from None
