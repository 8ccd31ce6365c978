"""The interface to Triton: reads requests, and answers each of them on its own response sender.

An exception that leaves `execute` would fail every request of the batch and send its text, paths included, to all
callers. So none does: a `RequestError` answers its own request; anything else is logged with its traceback and
answered as an internal error without details.
"""

import json
import logging
import math
import re
import reprlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from hiscore.arrays import Outputs
from hiscore.batching.batched_model import QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.edge.error_log import ErrorLog
from hiscore.errors import RequestError, to_request_error

log = logging.getLogger(__name__)

error_log = ErrorLog()

RESERVED = re.compile(
    "id|sequence_id|sequence_start|sequence_end|priority|timeout|headers|binary_data_output|triton_.*",
    re.DOTALL,
)
"""Names that Triton keeps for itself: ``/generate`` hands them on as if they were a model's parameters."""
MAY_BE_RESERVED = re.compile(f'"(?:{RESERVED.pattern})"', re.DOTALL)


@dataclass(frozen=True)
class ReplyTo:
    """The destination of a request's responses, and its id for the log."""

    sender: Any
    request_id: str

    @classmethod
    def of(cls, request: Any) -> "ReplyTo":
        return cls(request.get_response_sender(), request_id(request))

    def send(self, answer: Outputs | RequestError, last: bool = True, streamed: bool = False) -> bool:
        """Send a response, never raising.

        Args:
            last: No response follows.
            streamed: Begin an error's message with its code, since Triton drops the code of streamed responses.

        Returns:
            True if it was sent. Otherwise, for lack of shared memory say, an error was sent instead, as the
                last response.
        """
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            response = _response(answer, self.request_id, streamed)
            self.sender.send(response, flags=final if last else 0)
            return True
        except Exception as error:
            error_log.unsent(error)
            try:
                response = _response(to_request_error(error), self.request_id, streamed)
                self.sender.send(response, flags=final)
            except Exception:
                log.exception("a response could not be sent")
            return False

    def is_cancelled(self) -> bool:
        """Ask whether the caller has gone: a round trip to the server."""
        return bool(self.sender.is_cancelled())


def serve(
    requests: Sequence[Any], read: Callable[[Any], Any], batcher: Batcher[Any], timeout_s: float
) -> list[Any] | None:
    """Validate the requests of an `execute` and hand them to the batcher; return what `execute` returns.

    Args:
        read: Turns a request into a job, or raises `RequestError`. It must copy what it keeps: the shared memory
            behind a tensor is gone after `execute`.
        timeout_s: The longest wait in the queue; a caller may ask for less.
    """
    now = time.monotonic()
    queued: list[QueuedRequest[Any]] = []
    for request in requests:
        try:
            deadline = now + min(timeout_s, caller_timeout_s(request))
            job = read(request)
            answer = batcher.run_alone(job) if len(requests) == 1 else None
        except Exception as error:
            # Kept in a variable, an error would keep the request alive by its traceback.
            ReplyTo.of(request).send(to_request_error(error))
            continue
        if answer is not None:
            try:
                return [_response(answer, request_id(request))]
            except Exception as error:
                return [_response(to_request_error(error), request_id(request))]
        queued.append(QueuedRequest(job, ReplyTo.of(request), deadline))
    batcher.submit(queued)
    batcher.board.wait_for_turn()
    return None


def _response(answer: Outputs | RequestError, request_id: str, streamed: bool = False) -> Any:
    if isinstance(answer, RequestError):
        error_log.write(request_id, answer)
        code = getattr(pb_utils.TritonError, answer.code.value)
        message = f"{answer.code.value}: {answer.message}" if streamed else answer.message
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answer.items()])


def request_id(request: Any) -> str:
    """The id that the caller gave; empty without one, or if it is not UTF-8, which Triton does not check."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters(request: Any) -> str:
    """Return the parameters that are not Triton's own as JSON, or an empty string.

    Raises:
        RequestError: One of them is not UTF-8, which Triton does not check over HTTP.
    """
    given = _parameters(request)
    if not MAY_BE_RESERVED.search(given):
        return given
    return json.dumps(
        {name: value for name, value in json.loads(given).items() if not RESERVED.fullmatch(name)}
    )


def caller_timeout_s(request: Any) -> float:
    """Return the time-out that the caller gave, in seconds; infinity without one.

    Raises:
        RequestError: ``/generate`` handed on one that is not a number of microseconds.
    """
    asked = request.timeout()
    if not asked and '"timeout"' in (given := _parameters(request)):
        asked = json.loads(given).get("timeout", 0)
        if type(asked) is not int or asked < 0:
            raise RequestError(f"'timeout' must be a whole number of microseconds, not {reprlib.repr(asked)}")
    return asked / 1e6 if asked else math.inf


def _parameters(request: Any) -> str:
    try:
        return str(request.parameters())
    except UnicodeDecodeError:
        raise RequestError("the request's parameters are not valid UTF-8") from None


def tensor(request: Any, name: str) -> npt.NDArray[Any] | None:
    """View an input in shared memory, or return None if it was not sent."""
    triton_tensor = pb_utils.get_input_tensor_by_name(request, name)
    if triton_tensor is None:
        return None
    values: npt.NDArray[Any] = triton_tensor.as_numpy()
    return values


def required_tensor(request: Any, name: str) -> npt.NDArray[Any]:
    """Return an input like `tensor`, or raise if it was not sent."""
    values = tensor(request, name)
    if values is None:
        raise RequestError(f"'{name}' is missing")
    return values


def strings(values: npt.NDArray[Any], name: str) -> list[str]:
    """Decode a BYTES tensor, object [n].

    Raises:
        RequestError: An element is not UTF-8.
    """
    try:
        return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as error:
        raise RequestError(f"'{name}' is not valid UTF-8: {error.reason} at byte {error.start}") from None


def string(request: Any, name: str) -> str | None:
    """Read an input that is one text, or None if it was not sent."""
    values = tensor(request, name)
    return None if values is None else strings(values, name)[0]


def flag(request: Any, name: str) -> bool | None:
    """Read an input that is one flag, or None if it was not sent."""
    values = tensor(request, name)
    return None if values is None else bool(values[0])
