"""The one exception that travels to a caller: a message that we wrote and a code that Triton knows."""

import logging
from enum import Enum

log = logging.getLogger(__name__)


class Code(Enum):
    """Error codes of the contract; the values are the names of ``pb_utils.TritonError``'s codes."""

    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


REASONS = ("full", "late", "cancelled")
"""Why a call is turned away before it begins, as metrics count it."""


class RequestError(Exception):
    """One request cannot be served; its neighbours in the batch are not concerned.

    The message reaches the caller as it is: it names the field and, where there are any, the value and the
    bound, and never holds a path or a traceback.
    """

    def __init__(self, message: str, code: Code = Code.INVALID_ARG) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def to_request_error(error: Exception) -> RequestError:
    """What a caller may see of an error; what only we may see goes to the log."""
    if isinstance(error, RequestError):
        return error
    log.error("a call failed", exc_info=error)
    return RequestError("internal error, see the server's log", Code.INTERNAL)


class PoolExhausted(Exception):
    """More pages are needed at once than the pool has."""
