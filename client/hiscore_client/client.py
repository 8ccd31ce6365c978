"""The blocking client."""

from collections.abc import Callable, Generator, Sequence
from functools import partial

import grpc

from hiscore_client.calls import Calls
from hiscore_client.connection import Connection
from hiscore_client.deadline import Deadline
from hiscore_client.errors import Cancelled, with_request_id
from hiscore_client.generated import Chunk
from hiscore_client.generation import Generation
from hiscore_client.readiness import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.sans_io import run
from hiscore_client.score_call import ScoreCall


class ScoreClient(Calls[ScoreResult, Generator[Chunk, None, None]]):
    """Scores items and generates text with a hiscore server over gRPC. Threads may share one client.

    Nothing is connected before the first call.

    Example:
        >>> with ScoreClient() as client:
        ...     result = client.score("Is this a fruit?", ["apple", "hammer"], labels=[" Yes", " No"])
        ...     text = "".join(chunk.text for chunk in client.generate("A fruit is", max_tokens=8))
        >>> result.scores.shape  # items, labels
        (2, 2)
        >>> best = result.scores[:, 0].argmax()

    Args:
        url: host:port of the gRPC endpoint; by default the environment variable HISCORE_URL, else localhost:8001.
        limits: Sizes from which a call is split into several requests.
        retry: Attempts for a call that finds the server unavailable.
        max_in_flight: Concurrent requests of one call that is split.
        credentials: TLS, from ``grpc.ssl_channel_credentials()``; None: the environment's, see
            `hiscore_client.tls`.
        headers: gRPC metadata sent with every scoring and generation request; a function is asked for each.
        load_balancing: If the url's name has several addresses, ``pick_first`` uses the first that answers;
            ``round_robin`` connects to all and sends each request to the next.

    Raises:
        InvalidRequest: A setting that cannot work. All methods raise subclasses of `HiscoreError`.
    """

    def wait_ready(self, timeout: float = 60.0, models: Sequence[str] = ("score",)) -> None:
        """Wait until the server is up and these models are ready.

        Args:
            timeout: Seconds.

        Raises:
            ServerUnreachable: Nothing answered in time.
            DeadlineExceeded: A model did not become ready in time.
            ServerFault: A model of that name is not hiscore's.
        """
        run(wait_ready(models, Deadline(timeout), self._config.url), self._connection.perform)

    def close(self) -> None:
        """Close the connection; calls in progress in other threads raise `Cancelled`."""
        self._connection.close()

    def __enter__(self) -> "ScoreClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _connect(self, credentials: grpc.ChannelCredentials | None) -> None:
        self._connection = Connection(self._config, credentials)

    def _send(
        self, make: Callable[[], ScoreCall], request_id: str, on_progress: Callable[[int], None] | None
    ) -> ScoreResult:
        with with_request_id(request_id):
            return self._connection.send(make(), on_progress)

    def _stream(self, generation: Generation) -> Generator[Chunk, None, None]:
        stream = self._connection.stream()
        perform = partial(self._connection.perform, stream=stream)
        try:
            with with_request_id(generation.request_id):
                chunk = run(generation.first_chunk(), perform)
                while not chunk.finish_reason:
                    yield chunk
                    chunk = run(generation.next_chunk(), perform)
                stream.finish()
                yield chunk
        except Cancelled as error:
            if self._connection.closed.is_set():
                raise Cancelled("the client is closed", error.request_id) from None
            raise
        finally:
            stream.cancel()
