"""Operations without I/O: a generator yields what to do next, and a blocking or an async runner does it.

This keeps the rules for retries and deadlines in one place, shared by both clients, and testable without a network
or a clock.
"""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tritonclient.utils import InferenceServerException


@dataclass(frozen=True)
class Rpc:
    """Call a method: ``infer`` of `inference`, ``open`` and ``read`` of `grpc_stream`, or one of tritonclient's.

    Blocking and async versions have the same methods.
    """

    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Sleep:
    """Wait before the next step."""

    seconds: float


T = TypeVar("T")
# The result of an `Rpc` is sent back in; an InferenceServerException that it raises is thrown in.
Operation: TypeAlias = Generator[Rpc | Sleep, Any, T]


def run(operation: Operation[T], perform: Callable[[Rpc | Sleep], Any]) -> T:
    """Run an operation to its result; ``perform`` blocks."""
    try:
        step = next(operation)
        while True:
            try:
                answer = perform(step)
            except InferenceServerException as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(operation: Operation[T], perform: Callable[[Rpc | Sleep], Awaitable[Any]]) -> T:
    """Run an operation to its result; ``perform`` is awaited."""
    try:
        step = next(operation)
        while True:
            try:
                answer = await perform(step)
            except InferenceServerException as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
