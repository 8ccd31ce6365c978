"""Generations of one request, run side by side, and what they cost."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.api.chat.sampling import Parameter, Sampling, of_choice
from hiscore.api.http.metrics import Metrics, TokenTimes
from hiscore.api.models import Models
from hiscore.api.wire import ModelNames, Usage
from hiscore_client import Chunk


@dataclass(frozen=True)
class Generator:
    """The parts with which routes generate text; `logprobs` names tokens, and is None without a tokenizer."""

    models: Models
    names: ModelNames
    sampling: Sampling
    logprobs: LogprobsReader | None
    metrics: Metrics


class Generations:
    """All choices of a request, so many for each prompt; `parameters` are those of `decode`, by name."""

    def __init__(
        self,
        models: Models,
        prompts: Sequence[str | Sequence[int]],
        choices: int,
        parameters: Mapping[str, Parameter],
        request_id: str,
        times: TokenTimes,
        words: Mapping[str, str],
    ) -> None:
        self._models, self._prompts, self._choices = models, prompts, choices
        self._parameters, self._request_id, self._times = parameters, request_id, times
        self._words = words
        self._last: dict[int, Chunk] = {}

    @property
    def count(self) -> int:
        """The number of choices."""
        return len(self._prompts) * self._choices

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yield the chunks of all choices as they come, with the index of the choice.

        Raises:
            ApiError: One choice fails, which ends all.
        """
        async with aclosing(merged([self._chunks_of(index) for index in range(self.count)])) as chunks:
            async for index, chunk in chunks:
                self._last[index] = chunk
                self._times.add(index, len(chunk.token_ids))
                yield index, chunk

    def _chunks_of(self, index: int) -> AsyncGenerator[Chunk, None]:
        request_id = self._request_id if self.count == 1 else f"{self._request_id}-{index}"
        return self._models.generate(
            self._prompts[index // self._choices],
            of_choice(self._parameters, index % self._choices),
            request_id,
            self._words,
        )

    @property
    def usage(self) -> Usage:
        """The tokens of all chunks so far; a prompt counts once, however many choices it has."""
        firsts = [chunk for index, chunk in self._last.items() if not index % self._choices]
        prompt = sum(chunk.prompt_tokens for chunk in firsts)
        completion = sum(chunk.output_tokens for chunk in self._last.values())
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details={"cached_tokens": sum(chunk.cached_tokens for chunk in firsts)},
        )


async def merged(streams: Sequence[AsyncGenerator[Chunk, None]]) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Yield the chunks of several streams as they come; a stream waits until its last chunk has been taken."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for chunk in stream:
                yield 0, chunk
        return
    ready: asyncio.Queue[tuple[int, Chunk | Exception | None]] = asyncio.Queue(1)

    async def feed(index: int, stream: AsyncGenerator[Chunk, None]) -> None:
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    await ready.put((index, chunk))
        except Exception as error:
            await ready.put((index, error))
        else:
            await ready.put((index, None))

    tasks = [asyncio.create_task(feed(*each)) for each in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            index, arrived = await ready.get()
            if isinstance(arrived, Exception):
                raise arrived
            if arrived is None:
                running -= 1
            else:
                yield index, arrived
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
