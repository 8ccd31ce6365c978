"""The connection of the blocking client, over which its calls and streams go."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import InferenceServerClient

from hiscore_client.chunk_threads import ChunkThreads, closed_as_cancelled
from hiscore_client.config import ClientConfig
from hiscore_client.grpc_stream import GrpcStream, make_channel
from hiscore_client.inference import Inferences
from hiscore_client.results import ScoreResult
from hiscore_client.sans_io import Rpc, Sleep, run
from hiscore_client.score_call import ScoreCall


class Connection:
    """One gRPC connection, made at the first call and open until it is closed. Threads may share it.

    Args:
        credentials: For TLS; None: no TLS.

    Attributes:
        triton: For all but inferences.
        inferences: Over the same connection.
        closed: Set once it has been closed.
    """

    def __init__(self, config: ClientConfig, credentials: grpc.ChannelCredentials | None) -> None:
        self._config = config
        options = config.channel_args()
        self.triton = InferenceServerClient(config.url, creds=credentials, channel_args=options)
        self._channel = make_channel(grpc, config.url, credentials, options)
        self.inferences = Inferences(self._channel)
        self.closed = threading.Event()

    def send(self, call: ScoreCall, on_progress: Callable[[int], None] | None) -> ScoreResult:
        """Send all chunks of a call and return their results as one.

        Args:
            call: Split into chunks.
            on_progress: Called with the number of items done whenever it grows.

        Raises:
            HiscoreError: The first failure.
        """
        done = 0

        def add(result: ScoreResult) -> None:
            nonlocal done
            done += len(result.scores)
            if on_progress:
                on_progress(done)

        if len(call.chunks) == 1:
            result = run(call.request(0), self.perform)
            add(result)
            return call.merge([result])
        threads = ChunkThreads(self.triton, self.inferences, self.closed)
        requests = [call.request(index) for index in range(len(call.chunks))]
        return call.merge(threads.run_all(requests, self._config.max_in_flight, add))

    def stream(self) -> GrpcStream:
        """A stream over it, which is opened by its first step."""
        return GrpcStream(self._channel)

    def perform(self, step: Rpc | Sleep, stream: GrpcStream | None = None) -> Any:
        """Carry out a step and return its result.

        Args:
            step: What the operation yields: a call of Triton's, or a sleep.
            stream: For the steps of a stream.

        Raises:
            InferenceServerException: It failed.
            Cancelled: The connection is closed.
        """
        if isinstance(step, Sleep):
            return self.closed.wait(step.seconds)
        target = {"infer": self.inferences, "open": stream, "read": stream}.get(step.method, self.triton)
        with closed_as_cancelled(self.closed):
            return getattr(target, step.method)(**step.arguments)

    def close(self) -> None:
        """Close it; steps in progress in other threads raise `Cancelled`."""
        self.closed.set()
        self.triton.close()
        self._channel.close()
