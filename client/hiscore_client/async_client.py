"""The asyncio client."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import grpc
from tritonclient.grpc.aio import InferenceServerClient

from hiscore_client.calls import Calls
from hiscore_client.deadline import Deadline
from hiscore_client.errors import Cancelled, with_request_id
from hiscore_client.generated import Chunk
from hiscore_client.generation import Generation
from hiscore_client.grpc_stream import AsyncGrpcStream, make_channel
from hiscore_client.inference import AsyncInferences
from hiscore_client.readiness import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.sans_io import Rpc, Sleep, run_async
from hiscore_client.score_call import ScoreCall


class AsyncScoreClient(Calls[Coroutine[Any, Any, ScoreResult], AsyncGenerator[Chunk, None]]):
    """`ScoreClient` with the same methods to await, for the tasks of one event loop.

    Cancelling a task cancels its requests.

    Example:
        >>> import asyncio
        >>> async def scores(items):
        ...     async with AsyncScoreClient() as client:
        ...         return await client.score("Is this a fruit?", items, labels=[" Yes", " No"])
        >>> asyncio.run(scores(["apple", "hammer"])).scores.shape  # items, labels
        (2, 2)
    """

    async def wait_ready(self, timeout: float = 60.0, models: Sequence[str] = ("score",)) -> None:
        """Wait as `ScoreClient.wait_ready` does."""
        await run_async(wait_ready(models, Deadline(timeout), self._config.url), self._perform)

    async def close(self) -> None:
        """Close the connection; calls in progress raise `Cancelled`."""
        self._closed = True
        if self._triton is not None:
            await self._triton.close()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> "AsyncScoreClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _connect(self, credentials: grpc.ChannelCredentials | None) -> None:
        self._credentials = credentials
        self._triton: InferenceServerClient | None = None
        self._channel: grpc.aio.Channel | None = None
        self._inferences: AsyncInferences | None = None
        self._closed = False

    async def _send(
        self, make: Callable[[], ScoreCall], request_id: str, on_progress: Callable[[int], None] | None
    ) -> ScoreResult:
        with with_request_id(request_id):
            call = make()
            if len(call.chunks) == 1:
                result = await run_async(call.request(0), self._perform)
                if on_progress:
                    on_progress(len(result.scores))
                return call.merge([result])
            slots = asyncio.Semaphore(self._config.max_in_flight)
            tasks: list[asyncio.Task[ScoreResult]] = []
            done = 0

            async def send_chunk(index: int) -> ScoreResult:
                nonlocal done
                async with slots:
                    try:
                        result = await run_async(call.request(index), self._perform)
                    except BaseException:
                        # Before leaving the semaphore, which would let the next chunk start.
                        cancel_others()
                        raise
                done += len(result.scores)
                if on_progress:
                    on_progress(done)
                return result

            def cancel_others() -> None:
                for task in tasks:
                    if task is not asyncio.current_task():
                        task.cancel()

            tasks.extend(asyncio.create_task(send_chunk(index)) for index in range(len(call.chunks)))
            try:
                return call.merge(await asyncio.gather(*tasks))
            finally:
                cancel_others()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, generation: Generation) -> AsyncGenerator[Chunk, None]:
        if self._closed:
            raise Cancelled("the client is closed", generation.request_id)
        stream = AsyncGrpcStream(self._open_channel())

        async def perform(step: Rpc | Sleep) -> Any:
            if isinstance(step, Sleep) or step.method not in ("open", "read"):
                return await self._perform(step)
            return await self._unless_closed(getattr(stream, step.method), step.arguments)

        try:
            with with_request_id(generation.request_id):
                chunk = await run_async(generation.first_chunk(), perform)
                while not chunk.finish_reason:
                    yield chunk
                    chunk = await run_async(generation.next_chunk(), perform)
                await stream.finish()
                yield chunk
        finally:
            stream.cancel()

    async def _perform(self, step: Rpc | Sleep) -> Any:
        if self._closed:
            raise Cancelled("the client is closed")
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if step.method == "infer":
            if self._inferences is None:
                self._inferences = AsyncInferences(self._open_channel())
            return await self._unless_closed(self._inferences.infer, step.arguments)
        if self._triton is None:
            self._triton = InferenceServerClient(
                self._config.url, creds=self._credentials, channel_args=self._config.channel_args()
            )
        return await self._unless_closed(getattr(self._triton, step.method), step.arguments)

    def _open_channel(self) -> grpc.aio.Channel:
        # gRPC ties a channel to the running event loop, so it is opened by the first call.
        if self._channel is None:
            self._channel = make_channel(
                grpc.aio, self._config.url, self._credentials, self._config.channel_args()
            )
        return self._channel

    async def _unless_closed(self, method: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        if self._closed:
            raise Cancelled("the client is closed")
        try:
            return await method(**arguments)
        except asyncio.CancelledError:
            # Closing a channel looks like a cancellation of the tasks that wait for it.
            if self._closed:
                raise Cancelled("the client is closed") from None
            raise
