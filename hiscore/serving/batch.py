"""One `execute`: every request read, the good ones handed on together, each answered for itself.

An exception that leaves `execute` would fail every request of the batch and send its text, paths included, to
all of the callers. So nothing leaves: a `RequestError` answers its own request, anything else is logged with
its traceback and answered as an internal error that says nothing of the inside.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)

Job = TypeVar("Job")
Outputs = dict[str, npt.NDArray[Any]]
Answer = Outputs | RequestError


def read_all(
    requests: Sequence[Any], read: Callable[[Any], Job]
) -> tuple[list[tuple[int, Job]], list[tuple[int, RequestError]]]:
    """Read each request, by its place: the good ones as jobs, and the errors of the others."""
    jobs, errors = [], []
    for place, request in enumerate(requests):
        try:
            jobs.append((place, read(request)))
        except Exception as error:
            errors.append((place, as_request_error(error)))
    return jobs, errors


def run_batch(
    requests: Sequence[Any], read: Callable[[Any], Job], compute: Callable[[list[Job]], list[Answer]]
) -> list[Any]:
    """Answer all the requests of an `execute`, in their order, as the list that it returns.

    read: one request to one job, raising `RequestError` for a bad one; compute: the good jobs together, giving
    for each its output tensors by name, or its own error.
    """
    jobs, errors = read_all(requests, read)
    answers: dict[int, Answer] = dict(errors)
    if jobs:
        try:
            computed = compute([job for _, job in jobs])
        except Exception as error:
            computed = [as_request_error(error)] * len(jobs)
        answers |= {place: answer for (place, _), answer in zip(jobs, computed, strict=True)}
    return [respond(answers[place]) for place in range(len(requests))]


def as_request_error(error: Exception) -> RequestError:
    """The error a caller may see; what only we may see goes to the log."""
    if isinstance(error, RequestError):
        return error
    log.error("a batch failed", exc_info=error)
    return RequestError("internal error, see the server's log", Code.INTERNAL)


def respond(answer: Answer) -> Any:
    """One Triton response from output tensors or an error."""
    if isinstance(answer, RequestError):
        code = getattr(pb_utils.TritonError, answer.code.value)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.message, code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in answer.items()])


def send(sender: Any, answer: Answer) -> None:
    """Send a request's one response through its sender."""
    sender.send(respond(answer), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def tensor(request: Any, name: str) -> npt.NDArray[Any] | None:
    """An input as a view into shared memory (never keep it past `execute`), or None if it was not sent."""
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
