"""Streams side by side: in their own order, one failing for all, and none ahead of who takes the chunks."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from hiscore.api.chat.generation import merged
from hiscore_client import Chunk


def chunks(count: int, made: list[int] | None = None, fails: bool = False) -> AsyncGenerator[Chunk, None]:
    async def generate() -> AsyncGenerator[Chunk, None]:
        try:
            for number in range(count):
                if made is not None:
                    made.append(number)
                yield Chunk(str(number), [number], "")
                await asyncio.sleep(0)
            if fails:
                raise ValueError("failed")
        finally:
            if made is not None:
                made.append(-1)

    return generate()


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_every_stream_comes_in_order(streams: int) -> None:
    async def run() -> dict[int, str]:
        texts: dict[int, str] = {}
        async for index, chunk in merged([chunks(index + 3) for index in range(streams)]):
            texts[index] = texts.get(index, "") + chunk.text
        return texts

    assert asyncio.run(run()) == {index: "0123456789"[: index + 3] for index in range(streams)}


@pytest.mark.parametrize("streams", [1, 3])
def test_a_failure_ends_all(streams: int) -> None:
    made: list[int] = []

    async def run() -> None:
        others = [chunks(10**6, made) for _ in range(streams - 1)]
        async for _ in merged([chunks(2, fails=True), *others]):
            pass

    with pytest.raises(ValueError, match="failed"):
        asyncio.run(run())
    assert made.count(-1) == streams - 1


@pytest.mark.parametrize("streams", [1, 3])
def test_nothing_runs_ahead_of_a_slow_reader(streams: int) -> None:
    made: list[int] = []

    async def run() -> None:
        stream = merged([chunks(1_000, made) for _ in range(streams)])
        await anext(stream)
        await asyncio.sleep(0.05)
        assert len(made) <= 3 * streams
        await stream.aclose()

    asyncio.run(run())
    assert made.count(-1) == streams
