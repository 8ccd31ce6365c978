"""The one exception that reaches a caller: a message that we wrote, and a code that Triton knows."""

import logging
from enum import Enum

log = logging.getLogger(__name__)


class Code(Enum):
    """Error codes of the public interface; the values are the names of ``pb_utils.TritonError``'s codes."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


REASONS = ("full", "late", "cancelled")
"""Reasons to reject a request before it starts, as metrics count them."""


class RequestError(Exception):
    """One request cannot be served; others in its batch are not affected.

    The message is sent to the caller: it names the field, the value and the bound, and never a path or a
    traceback. Half a character, which JSON can escape, has no bytes: it is escaped.
    """

    def __init__(self, message: str, code: Code = Code.INVALID_ARG) -> None:
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.message = message
        self.code = code


def to_request_error(error: Exception) -> RequestError:
    """Turn any error into one that may be sent to a caller; the details of an internal error are logged."""
    if isinstance(error, RequestError):
        return error
    log.error("a call failed", exc_info=error)
    return RequestError("internal error, see the server's log", Code.INTERNAL)


class PoolExhausted(Exception):
    """More pages are needed at once than the pool has."""
