"""What a call can fail with, and how a gRPC failure becomes one of these."""

from collections.abc import Iterator
from contextlib import contextmanager

from tritonclient.utils import InferenceServerException


class HiscoreError(Exception):
    """Base of all; ``request_id`` is the call's, to find it in the server's log (None outside of a call)."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class InvalidRequest(HiscoreError):
    """The call can never succeed as it is; the message names the field and, where there are any, the bound."""


class Overloaded(HiscoreError):
    """The server answers but cannot take the call now: full, starting or stopping. Try again later."""


class DeadlineExceeded(HiscoreError):
    """The ``timeout`` of the call has passed, here or in the server's queue."""


class Cancelled(HiscoreError):
    """The call was given up: by the server, or because the client was closed."""


class ServerFault(HiscoreError):
    """The server failed, or its answer is not what hiscore promises."""


class ServerUnreachable(ServerFault):
    """Nothing answers at the address, or the connection broke and could not be made again."""


# Triton reports a call that waited too long in its queue as UNAVAILABLE, the code of a full queue.
_QUEUE_TIMEOUT = "Request timeout expired"
# gRPC's own size check shares RESOURCE_EXHAUSTED with the rate limits of proxies.
_TOO_LARGE = "larger than max"


def status_of(error: InferenceServerException) -> str:
    """The bare gRPC code, such as ``UNAVAILABLE``; empty for a failure inside of tritonclient."""
    return str(error.status() or "").removeprefix("StatusCode.")


def from_grpc(error: InferenceServerException) -> HiscoreError:
    """The exception of the tree above that says what ``error`` means."""
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
def belonging_to(request_id: str) -> Iterator[None]:
    """Write the request's id onto whatever of the tree leaves the block."""
    try:
        yield
    except HiscoreError as error:
        error.request_id = request_id
        raise
