"""The client for asyncio."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc.aio import InferenceServerClient

from hiscore_client.call import Call, Options
from hiscore_client.chunks import ChunkLimits
from hiscore_client.core import LoadBalancing, TokenIds, make_core
from hiscore_client.errors import Cancelled, belonging_to
from hiscore_client.generation import Chunk, Generation, GenerationOptions
from hiscore_client.ready import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.retry import Deadline, RetryPolicy
from hiscore_client.steps import Ask, Pause, drive_async
from hiscore_client.streams import AsyncStream, make_channel


class AsyncScoreClient:
    """The twin of `ScoreClient` with the same methods to await, for the tasks of one event loop.

    Cancelling a task cancels its requests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        limits: ChunkLimits | None = None,
        retry: RetryPolicy | None = None,
        max_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
        load_balancing: LoadBalancing = "pick_first",
    ) -> None:
        self._core = make_core(url, limits, retry, max_in_flight, headers, load_balancing)
        self._credentials = credentials
        self._triton: InferenceServerClient | None = None
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def score(
        self,
        query: str,
        items: Sequence[str],
        *,
        labels: Sequence[str] | None = None,
        label_token_ids: TokenIds | None = None,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        item_first: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        priority: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> ScoreResult:
        """As `ScoreClient.score`."""
        request_id = request_id or uuid.uuid4().hex
        options = Options(apply_softmax, temperature, item_first, priority)
        with belonging_to(request_id):
            call = self._core.text_call(query, items, labels, label_token_ids, options, timeout, request_id)
            return await self._run(call, on_progress)

    async def score_ids(
        self,
        query_ids: TokenIds,
        item_ids: Sequence[TokenIds],
        label_token_ids: TokenIds = (),
        *,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        timeout: float | None = None,
        request_id: str | None = None,
        priority: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> ScoreResult:
        """As `ScoreClient.score_ids`."""
        request_id = request_id or uuid.uuid4().hex
        options = Options(apply_softmax, temperature, priority=priority)
        with belonging_to(request_id):
            call = self._core.ids_call(query_ids, item_ids, label_token_ids, options, timeout, request_id)
            return await self._run(call, on_progress)

    def generate(
        self,
        prompt: str | TokenIds,
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        ignore_eos: bool = False,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        sparse: bool = True,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """As `ScoreClient.generate`, for ``async for``; a task that is cancelled cancels its generation."""
        request_id = request_id or uuid.uuid4().hex
        options = GenerationOptions(
            max_tokens, temperature, top_k, top_p, seed, ignore_eos, stop, stop_token_ids, sparse
        )
        with belonging_to(request_id):
            return self._chunks(self._core.generation(prompt, options, timeout, request_id))

    async def wait_ready(self, timeout: float = 60.0, models: Sequence[str] = ("score",)) -> None:
        """As `ScoreClient.wait_ready`."""
        await drive_async(wait_ready(models, Deadline(timeout), self._core.url), self._perform)

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self._closed = True
        if self._triton is not None:
            await self._triton.close()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> "AsyncScoreClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call, on_progress: Callable[[int], None] | None) -> ScoreResult:
        slots = asyncio.Semaphore(self._core.max_in_flight)
        tasks: list[asyncio.Task[ScoreResult]] = []
        done = 0

        async def run_chunk(place: int) -> ScoreResult:
            nonlocal done
            async with slots:
                try:
                    part = await drive_async(call.steps(place), self._perform)
                except BaseException:
                    # Before the slot is free for the next chunk.
                    cancel_others()
                    raise
            done += len(part.scores)
            if on_progress:
                on_progress(done)
            return part

        def cancel_others() -> None:
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()

        if len(call.chunks) == 1:
            return call.merge([await run_chunk(0)])
        tasks.extend(asyncio.create_task(run_chunk(place)) for place in range(len(call.chunks)))
        try:
            return call.merge(await asyncio.gather(*tasks))
        finally:
            cancel_others()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chunks(self, generation: Generation) -> AsyncGenerator[Chunk, None]:
        if self._closed:
            raise Cancelled("the client is closed", generation.request_id)
        if self._channel is None:
            self._channel = make_channel(
                grpc.aio, self._core.url, self._credentials, self._core.channel_args()
            )
        stream = AsyncStream(self._channel)

        async def perform(step: Ask | Pause) -> Any:
            if isinstance(step, Pause) or step.method not in ("open", "read"):
                return await self._perform(step)
            return await self._unless_closed(getattr(stream, step.method), step.arguments)

        try:
            with belonging_to(generation.request_id):
                chunk = await drive_async(generation.first(), perform)
                while not chunk.finish_reason:
                    yield chunk
                    chunk = await drive_async(generation.next(), perform)
                await stream.finish()
                yield chunk
        finally:
            stream.cancel()

    async def _perform(self, step: Ask | Pause) -> Any:
        if self._closed:
            raise Cancelled("the client is closed")
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        # gRPC ties a channel to the event loop it is made in, so it is made inside of the first call.
        if self._triton is None:
            self._triton = InferenceServerClient(
                self._core.url, creds=self._credentials, channel_args=self._core.channel_args()
            )
        return await self._unless_closed(getattr(self._triton, step.method), step.arguments)

    async def _unless_closed(self, method: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        if self._closed:
            raise Cancelled("the client is closed")
        try:
            return await method(**arguments)
        except asyncio.CancelledError:
            # Closing a channel looks like the cancellation of the tasks that wait on it.
            if self._closed:
                raise Cancelled("the client is closed") from None
            raise
