"""Generations of one request, run side by side, and what they cost."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.api.chat.sampling import GenerationRequest, Parameter, Sampling, of_choice
from hiscore.api.http.errors import bad_request
from hiscore.api.http.metrics import Metrics, TokenTimes
from hiscore.api.models import Models
from hiscore.api.wire import Answer, ModelCall, Usage, usage
from hiscore_client import Chunk

Head = TypeVar("Head", bound=Answer)


@dataclass(frozen=True)
class Generator:
    """The parts with which routes generate text; `logprobs` names tokens, and is None without a tokenizer."""

    models: Models
    sampling: Sampling
    logprobs: LogprobsReader | None
    metrics: Metrics

    def check_generates(self, call: ModelCall) -> None:
        """Raise `ApiError` if an adapter is to compute the call: `decode` computes none."""
        if call.adapter:
            raise bad_request(f"the adapter '{call.adapter}' scores, and generates nothing", "model")


@dataclass
class Generations:
    """All choices of a request, so many for each prompt; `parameters` are those of `decode`, by name."""

    models: Models
    prompts: Sequence[str | Sequence[int]]
    choices: int
    parameters: Mapping[str, Parameter]
    request_id: str
    times: TokenTimes
    words: Mapping[str, str]
    last: dict[int, Chunk] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.prompts) * self.choices

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yield the chunks of all choices as they come, with their index; an `ApiError` of one ends all."""
        async with aclosing(merged([self._chunks_of(index) for index in range(self.count)])) as chunks:
            async for index, chunk in chunks:
                self.last[index] = chunk
                self.times.add(index, len(chunk.token_ids))
                yield index, chunk

    def _chunks_of(self, index: int) -> AsyncGenerator[Chunk, None]:
        request_id = self.request_id if self.count == 1 else f"{self.request_id}-{index}"
        return self.models.generate(
            self.prompts[index // self.choices],
            of_choice(self.parameters, index % self.choices),
            request_id,
            self.words,
        )

    @property
    def usage(self) -> Usage:
        """The tokens of all chunks so far; a prompt counts once, however many choices it has."""
        firsts = [chunk for index, chunk in self.last.items() if not index % self.choices]
        return usage(
            sum(chunk.prompt_tokens for chunk in firsts),
            sum(chunk.cached_tokens for chunk in firsts),
            sum(chunk.output_tokens for chunk in self.last.values()),
        )


async def stream(
    head: Head, parts: AsyncGenerator[Any, None], generations: Generations, request: GenerationRequest
) -> AsyncGenerator[Head, None]:
    """Yield the events of a request, an answer like `head` for each part; the usage, if asked for, comes last."""
    always = request.stream_options and request.stream_options.continuous_usage_stats
    untold = None if request.tells_usage else UNSET
    async with aclosing(parts):
        async for part in parts:
            yield replace(head, choices=[part], usage=generations.usage if always else untold)
    if request.tells_usage:
        yield replace(head, usage=generations.usage)


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
