"""The models behind the API, called over gRPC by the SDK's client."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hiscore.api.http import trace
from hiscore.api.http.errors import SAME, ApiError, bad_request, from_models
from hiscore_client import AsyncScoreClient, Chunk, HiscoreError, RetryPolicy, ScoreResult

T = TypeVar("T")
READY_TIMEOUT_S = 2.0
# Of one request at once, so that others find room in the models' queue.
MOST_CALLS = 64
# The inputs of `decode`, in the words of the routes.
PROMPT = {"send 'input_ids'": "send token ids", "'text_input'": "'prompt'", "'input_ids'": "'prompt'"}


class Models:
    """The models of a server, or of all servers behind one name, at ``host:port``; failures are `ApiError`."""

    def __init__(self, address: str, served: Sequence[str], timeout_s: float) -> None:
        # A full server should say so at once: the caller knows better than we how long to try again.
        self._client = AsyncScoreClient(
            address, retry=RetryPolicy(attempts=1), headers=trace.metadata, load_balancing="round_robin"
        )
        self._served, self._timeout_s = served, timeout_s

    async def score_text(self, query: str, items: Sequence[str], **options: Any) -> ScoreResult:
        """Call `score`, with the options of `AsyncScoreClient.score`."""
        try:
            return await self._client.score(query, items, timeout=self._timeout_s, **options)
        except HiscoreError as error:
            raise from_models(error) from None

    async def score_ids(
        self,
        query: Sequence[int],
        items: Sequence[Sequence[int]],
        labels: Sequence[int],
        words: Mapping[str, str] = SAME,
        **options: Any,
    ) -> ScoreResult:
        """Call `scorer`, with the options of `AsyncScoreClient.score_ids`; `words` are those of `from_models`."""
        try:
            result = await self._client.score_ids(query, items, labels, timeout=self._timeout_s, **options)
        except HiscoreError as error:
            raise from_models(error, words) from None
        if items and not result.scores.shape[1] and "places" not in options:
            raise bad_request("this model scores tokens, not texts: ask /pooling")
        return result

    async def generate(
        self,
        prompt: str | Sequence[int],
        parameters: Mapping[str, bool | int | float | str],
        request_id: str,
        words: Mapping[str, str],
    ) -> AsyncGenerator[Chunk, None]:
        """Call `decode` with its parameters, by name; leaving the loop cancels its sequence.

        Args:
            words: The caller's words for those of `decode`, where it refuses.
        """
        try:
            chunks = self._client.generate(
                prompt, max_tokens=None, parameters=parameters, timeout=self._timeout_s, request_id=request_id
            )
            async with aclosing(chunks):
                async for chunk in chunks:
                    if chunk.finish_reason == "cancelled":
                        raise ApiError(503, "the models have ended this generation: try again later")
                    yield chunk
        except HiscoreError as error:
            raise from_models(error, {**PROMPT, **words}) from None

    async def is_ready(self) -> bool:
        try:
            await self._client.wait_ready(READY_TIMEOUT_S, models=self._served)
        except HiscoreError:
            return False
        return True

    async def close(self) -> None:
        await self._client.close()


async def few_at_once(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make the calls of one request, of which few run at once; once one fails, none goes on."""
    turns = asyncio.Semaphore(MOST_CALLS)

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await call()

    tasks = [asyncio.create_task(in_turn(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def rows(scores: npt.NDArray[np.float32]) -> list[list[float]]:
    """Scores as JSON has them: [items][labels]."""
    values: list[list[float]] = scores.tolist()
    return values
