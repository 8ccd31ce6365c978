"""Several chunks of one call in threads: which failure is reported, and how soon the others stop."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from hiscore_client import AsyncScoreClient, Cancelled, ChunkLimits, InvalidRequest, RetryPolicy, ScoreClient
from hiscore_client.chunk_threads import ChunkThreads
from hiscore_client.sans_io import Operation, Rpc, Sleep
from tests.support.timeouts import TIMEOUT_S


class FakeCall:
    """A request in flight; cancelling it answers it, unless it has been answered, as in gRPC."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()
        self.cancelled = False

    def cancel(self) -> None:
        if not self.answer.done():
            self.cancelled = True
            self.fail("CANCELLED", "cancelled")
            # Lets the thread of this chunk end before that of the failure, whose error counts nevertheless.
            time.sleep(0.02)

    def succeed(self, result: Any) -> None:
        self.answer.set_result(result)

    def fail(self, status: str, message: str) -> None:
        self.answer.set_exception(InferenceServerException(message, f"StatusCode.{status}"))


class FakeTriton:
    """tritonclient's blocking client, and `Inferences`: the test answers what is in flight."""

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self.changed = threading.Condition()

    def start(self, **arguments: Any) -> FakeCall:
        with self.changed:
            self.calls.append(FakeCall())
            self.changed.notify_all()
            return self.calls[-1]

    def finish(self, started: FakeCall) -> Any:
        return started.answer.result()

    def is_server_live(self, **arguments: Any) -> bool:
        return True

    def close(self) -> None:
        pass

    def answer_all(self) -> None:
        """After a test that failed, so that no thread waits for ever."""
        for call in self.calls:
            if not call.answer.done():
                call.fail("INTERNAL", "the test is over")

    def wait_for_calls(self, number: int) -> list[FakeCall]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.calls) >= number, TIMEOUT_S)
            return list(self.calls)


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def threads(triton: FakeTriton) -> ChunkThreads:
    return ChunkThreads(triton, triton, threading.Event())  # type: ignore[arg-type]


@pytest.fixture
def pool(triton: FakeTriton) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor
        triton.answer_all()


def chunk(*steps: Rpc | Sleep) -> Operation[Any]:
    answers = []
    for step in steps:
        answers.append((yield step))
    return answers


INFER = Rpc("infer", {})


def test_answers_come_back_and_nothing_stays_in_flight(
    threads: ChunkThreads, triton: FakeTriton, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = pool.submit(threads.run, chunk(INFER, Rpc("is_server_live", {})))
    triton.wait_for_calls(1)[0].succeed("answer")
    assert future.result(TIMEOUT_S) == ["answer", True]
    cancelled: list[None] = []
    monkeypatch.setattr(triton.calls[0], "cancel", lambda: cancelled.append(None))
    threads.stop()
    assert cancelled == []
    assert threads.first_failure is None


def test_the_first_failure_is_kept_and_cancels_the_others_before_a_new_chunk_starts(
    threads: ChunkThreads, triton: FakeTriton, pool: ThreadPoolExecutor
) -> None:
    futures = [pool.submit(threads.run, chunk(INFER)) for _ in range(3)]
    calls = triton.wait_for_calls(3)
    calls[1].fail("INVALID_ARGUMENT", "bad item")
    for future in futures:
        with pytest.raises(InferenceServerException):
            future.result(TIMEOUT_S)
    assert isinstance(threads.first_failure, InferenceServerException)
    assert threads.first_failure.message() == "bad item"
    assert [call.cancelled for call in calls] == [True, False, True]
    # The next chunk of a thread that is free now does not start, nor are its tensors built.
    with pytest.raises(Cancelled, match="another part"):
        threads.run(pytest.fail("built") for _ in "x")  # type: ignore[arg-type]
    assert len(triton.calls) == 3


def test_a_chunk_that_waits_to_retry_is_woken_and_sends_nothing(
    threads: ChunkThreads, triton: FakeTriton, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(threads.run, chunk(Sleep(TIMEOUT_S * 2), INFER))
    failing = pool.submit(threads.run, chunk(INFER))
    triton.wait_for_calls(1)[0].fail("INTERNAL", "broken")
    with pytest.raises(InferenceServerException, match="broken"):
        failing.result(TIMEOUT_S)
    with pytest.raises(Cancelled, match="another part"):
        waiting.result(TIMEOUT_S)
    assert len(triton.calls) == 1


def test_a_request_that_fails_to_start_stops_the_others_too(
    threads: ChunkThreads, triton: FakeTriton, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pool.submit(threads.run, chunk(INFER))
    (call,) = triton.wait_for_calls(1)
    monkeypatch.setattr(triton, "start", lambda **_: (_ for _ in ()).throw(ValueError("channel")))
    with pytest.raises(ValueError, match="channel"):
        threads.run(chunk(INFER))
    with pytest.raises(InferenceServerException):
        first.result(TIMEOUT_S)
    assert call.cancelled
    assert isinstance(threads.first_failure, ValueError)


def test_the_blocking_client_raises_the_first_failure_not_those_it_caused(triton: FakeTriton) -> None:
    with ScoreClient("localhost:1", limits=ChunkLimits(max_items=1), max_in_flight=3) as client:
        client._connection.triton = client._connection.inferences = triton
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(client.score, "q", list("abcdef"), labels=["x"])
            triton.wait_for_calls(3)[2].fail("INVALID_ARGUMENT", "bad item")
            try:
                with pytest.raises(InvalidRequest, match="bad item"):
                    call.result(TIMEOUT_S)
            finally:
                triton.answer_all()
    assert [call.cancelled for call in triton.calls] == [True, True, False]


class AsyncFakeTriton:
    """`AsyncInferences`: the test answers what is in flight."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[Any]] = []

    async def infer(self, **arguments: Any) -> Any:
        self.calls.append(asyncio.get_running_loop().create_future())
        return await self.calls[-1]


async def test_the_async_client_raises_the_first_failure_and_cancels_the_rest() -> None:
    triton = AsyncFakeTriton()
    policy = RetryPolicy(attempts=1)
    client = AsyncScoreClient("localhost:1", limits=ChunkLimits(max_items=1), retry=policy, max_in_flight=3)
    client._inferences = triton  # type: ignore[assignment]
    call = asyncio.create_task(client.score("q", list("abcdef"), labels=["x"]))
    while len(triton.calls) < 3:
        await asyncio.sleep(0)
    # Two fail in the same turn of the loop: the first counts, and its slot is not given to another chunk.
    for future, message in ((triton.calls[2], "first"), (triton.calls[0], "second")):
        future.set_exception(InferenceServerException(message, "StatusCode.INVALID_ARGUMENT"))
    with pytest.raises(InvalidRequest, match="first"):
        await asyncio.wait_for(call, TIMEOUT_S)
    assert len(triton.calls) == 3
    assert triton.calls[1].cancelled()
    await client.close()
