"""The blocking client."""

import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import InferenceServerClient

from hiscore_client.call import Call, Options
from hiscore_client.chunks import ChunkLimits
from hiscore_client.core import LoadBalancing, TokenIds, make_core
from hiscore_client.errors import Cancelled, belonging_to
from hiscore_client.flight import Flight, closing_as_cancelled
from hiscore_client.generation import Chunk, Generation, GenerationOptions
from hiscore_client.ready import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.retry import Deadline, RetryPolicy
from hiscore_client.steps import Ask, Pause, drive
from hiscore_client.streams import Stream, make_channel


class ScoreClient:
    """Scores items, and generates text, by a hiscore server over gRPC. Threads may share one client.

    url: host:port of the gRPC endpoint; by default from the variable HISCORE_URL, else localhost:8001. Nothing is
    connected before the first call. max_in_flight: requests at once of one call that is split. credentials: from
    ``grpc.ssl_channel_credentials()`` for TLS. headers: gRPC metadata sent with every scoring request.
    load_balancing: of the addresses that the url's name has, ``pick_first`` stays with one that answers;
    ``round_robin`` connects to all and sends each request to the next.

    All methods raise exceptions below `HiscoreError`.
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
        self._triton = InferenceServerClient(
            self._core.url, creds=credentials, channel_args=self._core.channel_args()
        )
        self._channel = make_channel(grpc, self._core.url, credentials, self._core.channel_args())
        self._closed = threading.Event()

    def score(
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
        """Score each item after the query, by text.

        A causal LM takes exactly one of ``labels`` (each one token) and ``label_token_ids``, a classifier neither.
        A score is the label's probability over the whole vocabulary, or with ``apply_softmax`` over the labels
        alone, the logits divided by ``temperature``; a classifier gives its logits. ``item_first`` puts the item
        before the query.

        timeout: seconds for the whole call, all chunks and retries included. request_id: by default a new one.
        priority: passed on to Triton; hiscore's own queues are first come, first served. on_progress: called with
        the number of items done each time that more are.

        Raises:
            InvalidRequest, Overloaded, DeadlineExceeded, Cancelled, ServerFault, ServerUnreachable
        """
        request_id = request_id or uuid.uuid4().hex
        options = Options(apply_softmax, temperature, item_first, priority)
        with belonging_to(request_id):
            call = self._core.text_call(query, items, labels, label_token_ids, options, timeout, request_id)
            return self._run(call, on_progress)

    def score_ids(
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
        """Score each item after the query, by token ids; the delimiters are laid out here.

        label_token_ids stay empty for a classifier. All else as for `score`.
        """
        request_id = request_id or uuid.uuid4().hex
        options = Options(apply_softmax, temperature, priority=priority)
        with belonging_to(request_id):
            call = self._core.ids_call(query_ids, item_ids, label_token_ids, options, timeout, request_id)
            return self._run(call, on_progress)

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
    ) -> Generator[Chunk, None, None]:
        """Continue a prompt, in text or in token ids, chunk by chunk.

        temperature: 0 takes the likeliest token; else top_k (0: off) and top_p bound what is drawn from, and a
        seed makes it repeatable. stop: strings that end the text, and are no part of it; stop_token_ids: ids that
        do. ignore_eos: the model's own end does not. sparse: false attends to every token, whatever the server
        selects.

        timeout: seconds for the whole stream. Closing the iterator, or dropping it, cancels the generation.
        Overload before the first chunk is tried again; what has begun is not.

        Raises:
            InvalidRequest, Overloaded, DeadlineExceeded, Cancelled, ServerFault, ServerUnreachable: the first of
                these at once, the others where the next chunk is asked for.
        """
        request_id = request_id or uuid.uuid4().hex
        options = GenerationOptions(
            max_tokens, temperature, top_k, top_p, seed, ignore_eos, stop, stop_token_ids, sparse
        )
        with belonging_to(request_id):
            return self._chunks(self._core.generation(prompt, options, timeout, request_id))

    def wait_ready(self, timeout: float = 60.0, models: Sequence[str] = ("score",)) -> None:
        """Wait until the server is up with these models.

        timeout: seconds.

        Raises:
            ServerUnreachable: nothing answered in time.
            DeadlineExceeded: a model did not become ready in time.
            ServerFault: a model of that name is not hiscore's.
        """
        drive(wait_ready(models, Deadline(timeout), self._core.url), self._perform)

    def close(self) -> None:
        """Close the connection; calls under way in other threads end with `Cancelled`."""
        self._closed.set()
        self._triton.close()
        self._channel.close()

    def __enter__(self) -> "ScoreClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call, on_progress: Callable[[int], None] | None) -> ScoreResult:
        places = range(len(call.chunks))
        if len(places) == 1:
            parts = [drive(call.steps(0), self._perform)]
            if on_progress:
                on_progress(call.items)
            return call.merge(parts)
        flight = Flight(self._triton, self._closed)
        with ThreadPoolExecutor(min(self._core.max_in_flight, len(places))) as pool:
            futures = [pool.submit(flight.run, call.steps(place)) for place in places]
            try:
                done = 0
                for future in as_completed(futures):
                    done += len(future.result().scores)
                    if on_progress:
                        on_progress(done)
            except BaseException as error:
                # What the first failure cancelled may have ended before it.
                first = flight.failure or error
                flight.stop()
                raise first from first.__cause__
        return call.merge([future.result() for future in futures])

    def _chunks(self, generation: Generation) -> Generator[Chunk, None, None]:
        stream = Stream(self._channel)

        def perform(step: Ask | Pause) -> Any:
            if isinstance(step, Pause) or step.method not in ("open", "read"):
                return self._perform(step)
            with closing_as_cancelled(self._closed):
                return getattr(stream, step.method)(**step.arguments)

        try:
            with belonging_to(generation.request_id):
                chunk = drive(generation.first(), perform)
                while not chunk.finish_reason:
                    yield chunk
                    chunk = drive(generation.next(), perform)
                stream.finish()
                yield chunk
        except Cancelled as error:
            if self._closed.is_set():
                raise Cancelled("the client is closed", error.request_id) from None
            raise
        finally:
            stream.cancel()

    def _perform(self, step: Ask | Pause) -> Any:
        if isinstance(step, Pause):
            return self._closed.wait(step.seconds)
        with closing_as_cancelled(self._closed):
            return getattr(self._triton, step.method)(**step.arguments)
