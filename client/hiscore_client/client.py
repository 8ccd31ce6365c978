"""The blocking client."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import InferenceServerClient

from hiscore_client.call import Call, Options
from hiscore_client.chunks import ChunkLimits
from hiscore_client.core import TokenIds, channel_args, make_core
from hiscore_client.errors import Cancelled, belonging_to
from hiscore_client.ready import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.retry import Deadline, RetryPolicy
from hiscore_client.steps import Ask, Pause, Steps, T, drive


class ScoreClient:
    """Scores items by a hiscore server over gRPC. Threads may share one client.

    url: host:port of the gRPC endpoint; by default from the variable HISCORE_URL, else localhost:8001. Nothing is
    connected before the first call. max_in_flight: requests at once of one call that is split. credentials: from
    ``grpc.ssl_channel_credentials()`` for TLS. headers: gRPC metadata sent with every scoring request.

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
    ) -> None:
        self._core = make_core(url, limits, retry, max_in_flight, headers)
        self._triton = InferenceServerClient(self._core.url, creds=credentials, channel_args=channel_args())
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
        flight = _Flight(self._triton, self._closed)
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

    def _perform(self, step: Ask | Pause) -> Any:
        if isinstance(step, Pause):
            return self._closed.wait(step.seconds)
        with _closing_as_cancelled(self._closed):
            return getattr(self._triton, step.method)(**step.arguments)


@contextmanager
def _closing_as_cancelled(closed: threading.Event) -> Iterator[None]:
    """gRPC answers a question on a closed channel with a ValueError; say what it means."""
    try:
        yield
    except ValueError:
        if closed.is_set():
            raise Cancelled("the client is closed") from None
        raise


class _Flight:
    """The chunks of one call under way in several threads, so that the failure of one can stop the others."""

    def __init__(self, triton: InferenceServerClient, closed: threading.Event) -> None:
        self._triton = triton
        self._closed = closed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._under_way: set[Any] = set()
        self.failure: BaseException | None = None

    def run(self, steps: Steps[T]) -> T:
        """Run one chunk's steps; the first failure stops the flight before its thread can take the next chunk."""
        if self._stopped.is_set():
            # Before the chunk's tensors are built.
            raise Cancelled("another part of the call has failed")
        try:
            return drive(steps, self._perform)
        except BaseException as error:
            with self._lock:
                self.failure = self.failure or error
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel what is under way; nothing new starts."""
        with self._lock:
            self._stopped.set()
            under_way = list(self._under_way)
        for context in under_way:
            context.cancel()

    def _perform(self, step: Ask | Pause) -> Any:
        if isinstance(step, Pause):
            self._stopped.wait(step.seconds)
            return None
        if step.method != "infer":
            with _closing_as_cancelled(self._closed):
                return getattr(self._triton, step.method)(**step.arguments)
        answer: Future[Any] = Future()

        def settle(result: Any, error: Any) -> None:
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        with self._lock:
            if self._stopped.is_set():
                raise Cancelled("another part of the call has failed")
            with _closing_as_cancelled(self._closed):
                context = self._triton.async_infer(callback=settle, **step.arguments)
            self._under_way.add(context)
        try:
            return answer.result()
        finally:
            with self._lock:
                self._under_way.discard(context)
