"""A model's calls at Triton's edge: each is read and answered for itself, on its own response sender.

An exception that leaves `execute` would fail every request of the batch and send its text, paths included, to
all of the callers. So nothing leaves: a `RequestError` answers its own request, anything else is logged with
its traceback and answered as an internal error that says nothing of the inside.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from hiscore.errors import Code, RequestError, to_request_error
from hiscore.serving.batcher import Engine
from hiscore.serving.error_log import ErrorLog
from hiscore.serving.tickets import Ticket

log = logging.getLogger(__name__)

Job = TypeVar("Job")
Outputs = dict[str, npt.NDArray[Any]]
Answer = Outputs | RequestError

refusals = ErrorLog()


@dataclass(frozen=True)
class ReplyTo:
    """Where a call's answers go, and the id by which the log names it."""

    sender: Any
    request_id: str

    @classmethod
    def of(cls, request: Any) -> "ReplyTo":
        """Whoever made a request."""
        return cls(request.get_response_sender(), request_id(request))


def serve(
    requests: Sequence[Any], read: Callable[[Any], Job], engine: Engine[Job], timeout_s: float
) -> list[Any] | None:
    """Check the requests of an `execute` and hand the good ones to the engine; returns what `execute` returns.

    read: one request to one job, raising `RequestError` for a bad one; it must copy what it keeps, since the
    shared memory behind a tensor is gone after `execute`. timeout_s: the longest wait; a caller may ask for less.
    """
    now = time.monotonic()
    tickets: list[Ticket[Job]] = []
    for request in requests:
        try:
            job = read(request)
        except Exception as error:
            send(ReplyTo.of(request), to_request_error(error))
            continue
        if len(requests) == 1 and (answer := engine.run_alone(job)) is not None:
            try:
                return [_response(answer, request_id(request))]
            except Exception as error:
                return [_response(to_request_error(error), request_id(request))]
        asked_us = request.timeout()
        wait_s = min(timeout_s, asked_us / 1e6) if asked_us else timeout_s
        tickets.append(Ticket(job, ReplyTo.of(request), now + wait_s))
    for ticket in engine.submit(tickets):
        send(ticket.reply_to, RequestError("the server is full, try again later", Code.UNAVAILABLE))
    return None


def send(reply_to: ReplyTo, answer: Answer, last: bool = True, streamed: bool = False) -> bool:
    """Send a response, of a stream perhaps one of many; returns whether it went out as it is.

    One that cannot be sent, for want of shared memory say, becomes an error and the last. streamed: an error's
    message begins with its code, since Triton's streams leave the code itself behind.
    """
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    try:
        response = _response(answer, reply_to.request_id, streamed)
        reply_to.sender.send(response, flags=final if last else 0)
        return True
    except Exception as error:
        try:
            response = _response(to_request_error(error), reply_to.request_id, streamed)
            reply_to.sender.send(response, flags=final)
        except Exception:
            log.exception("a response could not be sent")
        return False


def _response(answer: Answer, request_id: str, streamed: bool = False) -> Any:
    if isinstance(answer, RequestError):
        refusals.write(request_id, answer)
        code = getattr(pb_utils.TritonError, answer.code.value)
        message = f"{answer.code.value}: {answer.message}" if streamed else answer.message
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answer.items()])


def request_id(request: Any) -> str:
    """The id that the caller gave, if it did; empty too if it is not UTF-8, which Triton does not look at."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters(request: Any) -> str:
    """The parameters as JSON, perhaps empty.

    Raises:
        RequestError: one of them is not UTF-8, which Triton does not look at where they come over HTTP.
    """
    try:
        return str(request.parameters())
    except UnicodeDecodeError:
        raise RequestError("the request's parameters are not valid UTF-8") from None


def tensor(request: Any, name: str) -> npt.NDArray[Any] | None:
    """An input as a view into shared memory, or None if it was not sent."""
    found = pb_utils.get_input_tensor_by_name(request, name)
    if found is None:
        return None
    values: npt.NDArray[Any] = found.as_numpy()
    return values


def required_tensor(request: Any, name: str) -> npt.NDArray[Any]:
    """As `tensor`, for an input without which there is no call."""
    values = tensor(request, name)
    if values is None:
        raise RequestError(f"'{name}' is missing")
    return values


def strings(values: npt.NDArray[np.object_], name: str) -> list[str]:
    """Decode a one-dimensional BYTES tensor.

    Raises:
        RequestError: an element is not UTF-8.
    """
    try:
        return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as error:
        raise RequestError(f"'{name}' is not valid UTF-8: {error.reason} at byte {error.start}") from None
