"""Errors of the API, and the shape that each family of wire formats gives them."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from hiscore_client import (
    Cancelled,
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    ServerUnreachable,
)

CLIENT_CLOSED = 499
"""The status of a request whose caller has gone: for logs and metrics, since nobody reads the answer."""


CONTEXT_EXCEEDED = "context_length_exceeded"
# How the checks of a prompt's length end what they say, here and in the models.
OF_CONTEXT = "(MAX_CONTEXT)"
# Triton's, before what a model of the ensemble says.
ENSEMBLE = re.compile(r"^in ensemble '\w+', ")
FIELD = re.compile(r"(?:parameters? )?'([\w.]+)'")
SAME: Mapping[str, str] = MappingProxyType({})


class ApiError(Exception):
    """A request that gets an error for an answer.

    The message for the caller names the field, and where there are any the value and the bound.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        default = CONTEXT_EXCEEDED if message.endswith(OF_CONTEXT) else CODES.get(status, "internal_error")
        self.code = code or default


CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "overloaded",
    CLIENT_CLOSED: "cancelled",
    503: "models_unavailable",
    504: "deadline_exceeded",
}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param, code)


def from_models(error: HiscoreError, words: Mapping[str, str] = SAME) -> ApiError:
    """Turn a failure of the models into an error for callers, with `words` for the words that they do not know."""
    message = ENSEMBLE.sub("", str(error))
    if isinstance(error, InvalidRequest):
        for word, known in words.items():
            message = message.replace(word, known)
        named = FIELD.match(message)
        return bad_request(message, named[1] if named else None)
    statuses: tuple[tuple[type[HiscoreError], int], ...] = (
        (Overloaded, 429),
        (DeadlineExceeded, 504),
        (Cancelled, CLIENT_CLOSED),
    )
    for kind, status in statuses:
        if isinstance(error, kind):
            return ApiError(status, message)
    # The addresses that these messages name are none of the caller's business.
    if isinstance(error, ServerUnreachable):
        return ApiError(503, "the models do not answer: try again later")
    return ApiError(500, "the models failed on this request")


ErrorShape: TypeAlias = Callable[[ApiError, str], dict[str, Any]]
"""Makes the body of an error from it and the request's id."""


def openai_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """OpenAI's shape, which SGLang, vLLM and Jina have, too."""
    kind = "invalid_request_error" if error.status < 500 and error.status != 429 else "server_error"
    if error.status in (401, 429):
        kind = {401: "authentication_error", 429: "rate_limit_error"}[error.status]
    message = error.message
    if error.code == CONTEXT_EXCEEDED:
        # LiteLLM and LangChain know it by these words of the message alone.
        message += f". This model's maximum context length is exceeded ({CONTEXT_EXCEEDED})"
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": error.param,
            "code": error.code,
            "request_id": request_id,
        }
    }


def cohere_error(error: ApiError, request_id: str) -> dict[str, Any]:
    return {"id": request_id, "message": error.message}


def tei_error(error: ApiError, request_id: str) -> dict[str, Any]:
    kinds = {429: "Overloaded", 503: "Unhealthy", 504: "Backend", 500: "Backend"}
    return {
        "error": error.message,
        "error_type": kinds.get(error.status, "Validation"),
        "request_id": request_id,
    }


def nim_error(error: ApiError, request_id: str) -> dict[str, Any]:
    return {
        "object": "error",
        "message": error.message,
        "detail": error.message,
        "type": openai_error(error, request_id)["error"]["type"],
        "request_id": request_id,
    }
