"""A call as a generator of steps: it decides what to do, and a driver, blocking or not, does it.

So the rules on retries and deadlines exist once, and can be tested without a network or a clock.
"""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tritonclient.utils import InferenceServerException


@dataclass(frozen=True)
class Ask:
    """Call a method of tritonclient's gRPC client; both of its twins have the same methods."""

    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Pause:
    """Wait before the next step."""

    seconds: float


T = TypeVar("T")
# What an `Ask` returns is sent back in; an InferenceServerException that it raises is thrown in.
Steps: TypeAlias = Generator[Ask | Pause, Any, T]


def drive(steps: Steps[T], perform: Callable[[Ask | Pause], Any]) -> T:
    """Run steps to their result with a ``perform`` that blocks."""
    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except InferenceServerException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def drive_async(steps: Steps[T], perform: Callable[[Ask | Pause], Awaitable[Any]]) -> T:
    """Run steps to their result with a ``perform`` to await."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except InferenceServerException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
