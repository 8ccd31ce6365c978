"""The blocking client."""

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import grpc

from hiscore_client import tls
from hiscore_client.chunking import ChunkLimits
from hiscore_client.config import Headers, LoadBalancing, make_config
from hiscore_client.connection import Connection
from hiscore_client.deadline import Deadline
from hiscore_client.decode_parameters import DecodeParameters, to_wire
from hiscore_client.errors import Cancelled, with_request_id
from hiscore_client.generated import Chunk
from hiscore_client.generation import Generation, GenerationOptions, make_generation
from hiscore_client.readiness import wait_ready
from hiscore_client.results import ScoreResult
from hiscore_client.retry import RetryPolicy
from hiscore_client.sans_io import run
from hiscore_client.score_call import ids_call, text_call
from hiscore_client.score_options import ScoreOptions
from hiscore_client.tensors import TokenIds

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ScoreClient:
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

    def __init__(
        self,
        url: str | None = None,
        *,
        limits: ChunkLimits | None = None,
        retry: RetryPolicy | None = None,
        max_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Headers | None = None,
        load_balancing: LoadBalancing = "pick_first",
    ) -> None:
        self._config = make_config(url, limits, retry, max_in_flight, headers, load_balancing)
        self._connection = Connection(self._config, credentials or tls.from_environment())

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
        label_counts: Sequence[int] | None = None,
        raw_logits: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        priority: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> ScoreResult:
        """Score each item, given as text, as a continuation of the query.

        A causal LM takes exactly one of ``labels`` and ``label_token_ids`` and gives the labels' probabilities;
        a classifier takes neither and gives its logits.

        Args:
            labels: Each must be exactly one token.
            apply_softmax: Normalise probabilities over the labels instead of the whole vocabulary.
            temperature: Divides the logits; other than 1.0 only with ``apply_softmax``.
            item_first: Put the item before the query.
            label_counts: How many of the labels are each item's own, in turn; rows of the result are filled up
                with 0. By default all items share all labels.
            raw_logits: Return the labels' logits; not with ``apply_softmax``.
            timeout: Seconds for the whole call, all chunks and retries included; None: no limit.
            request_id: Identifies the call in the server's log; by default a new one.
            priority: Passed on to Triton; hiscore's own queues ignore it.
            on_progress: Called with the number of items done whenever it grows.

        Raises:
            InvalidRequest, Overloaded, DeadlineExceeded, Cancelled, ServerFault, ServerUnreachable
        """
        request_id = request_id or uuid.uuid4().hex
        options = ScoreOptions(apply_softmax, temperature, item_first, priority, label_counts, raw_logits)
        with with_request_id(request_id):
            call = text_call(
                self._config, query, items, labels, label_token_ids, options, timeout, request_id
            )
            return self._connection.send(call, on_progress)

    def score_ids(
        self,
        query_ids: TokenIds,
        item_ids: Sequence[TokenIds],
        label_token_ids: TokenIds = (),
        *,
        apply_softmax: bool = False,
        temperature: float = 1.0,
        label_counts: Sequence[int] | None = None,
        raw_logits: bool = False,
        timeout: float | None = None,
        request_id: str | None = None,
        priority: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> ScoreResult:
        """Score each item, given as token ids; the delimiters are inserted for you.

        Args:
            label_token_ids: Empty for a classifier.

        The other arguments, the result and the errors are those of `score`.
        """
        request_id = request_id or uuid.uuid4().hex
        options = ScoreOptions(apply_softmax, temperature, False, priority, label_counts, raw_logits)
        with with_request_id(request_id):
            call = ids_call(self._config, query_ids, item_ids, label_token_ids, options, timeout, request_id)
            return self._connection.send(call, on_progress)

    def generate(
        self,
        prompt: str | TokenIds,
        *,
        max_tokens: int | None = 16,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        ignore_eos: bool = False,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        sparse: bool = True,
        parameters: Mapping[str, bool | int | float | str] | None = None,
        timeout: float | None = None,
        request_id: str | None = None,
        **more: "Unpack[DecodeParameters]",
    ) -> Generator[Chunk, None, None]:
        """Continue a prompt, streamed chunk by chunk.

        Closing or dropping the iterator cancels the generation. Only overload before the first chunk is retried.

        Args:
            max_tokens: Most new tokens; None: what is left of the context.
            temperature: 0 decodes greedily.
            top_k: Sample from the k most likely tokens; 0: from all.
            top_p: Sample from the most likely tokens that add up to this probability.
            seed: Makes sampling reproducible.
            ignore_eos: Continue after the model's end-of-sequence token.
            stop: Strings that end the text; they are not part of it.
            stop_token_ids: Token ids that end the text.
            sparse: False: attend to every token, regardless of the server's selector.
            parameters: Others of the server's parameters, by their names.
            timeout: Seconds for the whole stream; None: no limit.
            request_id: Identifies the call in the server's log; by default a new one.
            more: `DecodeParameters`, by name.

        Yields:
            Chunks; only the last has a ``finish_reason``.

        Raises:
            InvalidRequest: At once.
            Overloaded, DeadlineExceeded, Cancelled, ServerFault, ServerUnreachable: From the iterator.
        """
        request_id = request_id or uuid.uuid4().hex
        with with_request_id(request_id):
            options = GenerationOptions(
                max_tokens,
                temperature,
                top_k,
                top_p,
                seed,
                ignore_eos,
                stop,
                stop_token_ids,
                sparse,
                {**to_wire(more), **(parameters or {})},
            )
            return self._stream(make_generation(self._config, prompt, options, timeout, request_id))

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
