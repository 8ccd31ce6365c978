"""The calls of both clients: what a caller says becomes a request, which each client sends in its own way."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc

from hiscore_client import tls
from hiscore_client.chunking import ChunkLimits
from hiscore_client.config import Headers, LoadBalancing, make_config
from hiscore_client.decode_parameters import DecodeParameters, to_wire
from hiscore_client.errors import with_request_id
from hiscore_client.generation import Generation, GenerationOptions, make_generation
from hiscore_client.retry import RetryPolicy
from hiscore_client.score_call import ScoreCall, ids_call, text_call
from hiscore_client.score_options import LabelOptions, Places, ScoreOptions
from hiscore_client.tensors import TokenIds

if TYPE_CHECKING:
    from typing_extensions import Unpack

Scored = TypeVar("Scored")
"""A `ScoreResult`, or what is awaited for one."""
Chunks = TypeVar("Chunks")
"""A generator of the chunks of a generation."""


class Calls(ABC, Generic[Scored, Chunks]):
    """`ScoreClient` and `AsyncScoreClient` up to the connection."""

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
        self._connect(credentials or tls.from_environment())

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
        **more: "Unpack[LabelOptions]",
    ) -> Scored:
        """Score each item, given as text, as a continuation of the query.

        A causal LM takes exactly one of ``labels`` and ``label_token_ids`` and gives the labels' probabilities;
        a classifier takes neither and gives its logits.

        Args:
            labels: The score of one that has several tokens is the product of their probabilities.
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
            more: Options of labels that have several tokens.

        Raises:
            InvalidRequest, Overloaded, DeadlineExceeded, Cancelled, ServerFault, ServerUnreachable
        """
        given = request_id or uuid.uuid4().hex

        def make() -> ScoreCall:
            options = ScoreOptions(
                apply_softmax, temperature, item_first, priority, label_counts, raw_logits, **more
            )
            return text_call(self._config, query, items, labels, label_token_ids, options, timeout, given)

        return self._send(make, given, on_progress)

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
        places: Places = None,
        timeout: float | None = None,
        request_id: str | None = None,
        priority: int = 0,
        on_progress: Callable[[int], None] | None = None,
        **more: "Unpack[LabelOptions]",
    ) -> Scored:
        """Score each item, given as token ids; the delimiters are inserted for you.

        Args:
            label_token_ids: Empty for a classifier.
            places: Tokens of query and items at which a classifier is read, too, or "all".

        The other arguments, the result and the errors are those of `score`.
        """
        given = request_id or uuid.uuid4().hex

        def make() -> ScoreCall:
            options = ScoreOptions(
                apply_softmax, temperature, False, priority, label_counts, raw_logits, places=places, **more
            )
            return ids_call(self._config, query_ids, item_ids, label_token_ids, options, timeout, given)

        return self._send(make, given, on_progress)

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
    ) -> Chunks:
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

    @abstractmethod
    def _connect(self, credentials: grpc.ChannelCredentials | None) -> None:
        """Prepare for the first call."""

    @abstractmethod
    def _send(
        self, make: Callable[[], ScoreCall], request_id: str, on_progress: Callable[[int], None] | None
    ) -> Scored:
        """Make a scoring call and send it; its errors get the request's id."""

    @abstractmethod
    def _stream(self, generation: Generation) -> Chunks:
        """Stream a generation."""
