"""The runners of operations, blocking and async: results, and errors that an operation may catch."""

import asyncio
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from hiscore_client.sans_io import Operation, Rpc, Sleep, run, run_async

INFER = Rpc("infer", {})


def operation() -> Operation[list[Any]]:
    """Answers of two steps, an exception in place of the one that raises."""
    answers: list[Any] = []
    for step in (INFER, Sleep(0.5)):
        try:
            answers.append((yield step))
        except InferenceServerException as error:
            answers.append(error.message())
    return answers


def perform(step: Rpc | Sleep) -> Any:
    if step is INFER:
        raise InferenceServerException("full")
    return step


async def perform_async(step: Rpc | Sleep) -> Any:
    return perform(step)


def broken(step: Rpc | Sleep) -> Any:
    raise ValueError("channel")


async def broken_async(step: Rpc | Sleep) -> Any:
    return broken(step)


def test_an_operation_sees_the_servers_errors_and_gives_its_result() -> None:
    assert run(operation(), perform) == ["full", Sleep(0.5)]
    assert asyncio.run(run_async(operation(), perform_async)) == ["full", Sleep(0.5)]


def test_other_errors_end_it() -> None:
    with pytest.raises(ValueError, match="channel"):
        run(operation(), broken)
    with pytest.raises(ValueError, match="channel"):
        asyncio.run(run_async(operation(), broken_async))
