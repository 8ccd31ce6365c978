import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hiscore.api.http.interruption import Interrupted, Interruptible

LONG_S = 60


async def waiting(interrupt_after: int | None, work: Callable[[], Awaitable[str]]) -> str:
    """Work in a block that is interrupted after so many turns of the loop, if at all."""
    loop = asyncio.get_running_loop()
    with Interruptible() as block:

        def turn(left: int) -> None:
            if left:
                loop.call_soon(turn, left - 1)
            else:
                block.interrupt()

        if interrupt_after is not None:
            turn(interrupt_after)
        return await work()


async def long() -> str:
    await asyncio.sleep(LONG_S)
    return "slept"


async def short() -> str:
    await asyncio.sleep(0)
    return "done"


def test_what_is_waited_for_is_cancelled() -> None:
    seen = []

    async def work() -> str:
        try:
            return await long()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(Interrupted):
        asyncio.run(waiting(3, work))
    assert seen == ["cancelled"]


def test_control_without_an_interruption_there_is_a_result() -> None:
    assert asyncio.run(waiting(None, short)) == "done"


def test_a_block_that_has_ended_harms_nothing_that_follows() -> None:
    async def later() -> str:
        first = await waiting(5, short)
        for _ in range(10):
            await asyncio.sleep(0)
        return first

    assert asyncio.run(later()) == "done"


def test_the_task_goes_on_after_an_interruption() -> None:
    async def twice() -> str:
        with pytest.raises(Interrupted):
            await waiting(1, long)
        await asyncio.sleep(0)
        return await asyncio.wait_for(waiting(None, short), LONG_S)

    assert asyncio.run(twice()) == "done"


def test_work_that_fails_once_it_is_cancelled_is_interrupted_all_the_same() -> None:
    async def work() -> str:
        try:
            return await long()
        finally:
            raise RuntimeError("while it was ending")

    with pytest.raises(Interrupted):
        asyncio.run(waiting(1, work))


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(waiting(None, long))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
