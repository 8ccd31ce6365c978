"""The exceptions of the SDK, and how gRPC failures map to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tritonclient.utils import InferenceServerException


class HiscoreError(Exception):
    """Base class; ``request_id`` identifies the call in the server's log (None outside of a call)."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class InvalidRequest(HiscoreError):
    """The call can never succeed; the message names the field and, if there is one, the bound.

    `record_id` is that of the line of a file that cannot be a call.
    """

    record_id: Any = None


class Overloaded(HiscoreError):
    """The server is up but cannot take the call now: full, starting or stopping. Try again later."""


class DeadlineExceeded(HiscoreError):
    """The ``timeout`` of the call expired, in the client or in the server's queue."""


class Cancelled(HiscoreError):
    """The server gave the call up, or the client was closed."""


class ServerFault(HiscoreError):
    """The server failed, or its answer does not follow hiscore's interface."""


class ServerUnreachable(ServerFault):
    """Nothing answers at the address, or the connection broke and could not be restored."""


# Triton reports a call that waited too long in its queue as UNAVAILABLE, the code of a full queue.
_QUEUE_TIMEOUT = "Request timeout expired"
# gRPC's own size check shares RESOURCE_EXHAUSTED with the rate limits of proxies.
_TOO_LARGE = "larger than max"


def status_of(error: InferenceServerException) -> str:
    """The bare gRPC code, such as ``UNAVAILABLE``; empty for a failure inside tritonclient."""
    return str(error.status() or "").removeprefix("StatusCode.")


def from_grpc(error: InferenceServerException) -> HiscoreError:
    """Convert a failure of tritonclient to the SDK's exception for it."""
    status, message = status_of(error), str(error.message())
    kind: type[HiscoreError] = ServerFault
    if status == "DEADLINE_EXCEEDED" or (status == "UNAVAILABLE" and _QUEUE_TIMEOUT in message):
        kind = DeadlineExceeded
    elif status == "UNAVAILABLE":
        kind = Overloaded
    elif status == "RESOURCE_EXHAUSTED":
        kind = InvalidRequest if _TOO_LARGE in message else Overloaded
    elif status == "INVALID_ARGUMENT":
        kind = InvalidRequest
    elif status == "CANCELLED":
        kind = Cancelled
    return kind(message)


@contextmanager
def with_request_id(request_id: str) -> Iterator[None]:
    """Set the request's id on any `HiscoreError` that leaves the block."""
    try:
        yield
    except HiscoreError as error:
        error.request_id = request_id
        raise
