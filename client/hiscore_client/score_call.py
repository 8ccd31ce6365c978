"""A scoring call, split into chunks: each chunk is one request to the server."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hiscore_client.chunking import split_into_chunks
from hiscore_client.config import ClientConfig
from hiscore_client.deadline import Deadline
from hiscore_client.errors import InvalidRequest
from hiscore_client.inference import Tensor, id_tensor, make_request, text_tensor
from hiscore_client.results import ScoreResult, merge_chunks, parse_result
from hiscore_client.retry import call_with_retries
from hiscore_client.sans_io import Operation, Rpc
from hiscore_client.score_options import ScoreOptions
from hiscore_client.tensors import TokenIds, as_id_array, encode_text, encode_texts, lay_out


@dataclass(frozen=True)
class ScoreCall:
    """One call, split into chunks. Each chunk is retried on its own; all share one deadline.

    Args:
        model: ``score`` or ``scorer``.
        chunks: Slices of the items, at least one.
        inputs: Builds the tensors of one chunk.
        labels: Columns of the scores; None for a classifier, which has its own labels.
        deadline: When the whole call must have ended.
    """

    config: ClientConfig
    model: str
    chunks: list[slice]
    inputs: Callable[[slice], list[Tensor]]
    labels: int | None
    options: ScoreOptions
    deadline: Deadline
    request_id: str

    def request(self, index: int) -> Operation[ScoreResult]:
        """Send one chunk and read its result; its tensors are built when the operation starts."""
        chunk, options = self.chunks[index], self.options
        tensors, parameters = self.inputs(chunk), options.parameters(chunk)
        request_id = self.request_id if len(self.chunks) == 1 else f"{self.request_id}/{index}"
        metadata = tuple(self.config.metadata().items())

        def infer(remaining: float) -> Rpc:
            # The connection has it, and Triton's queue, which drops the call once its time is up.
            timeout = None if math.isinf(remaining) else remaining
            request = make_request(self.model, tensors, parameters, request_id, timeout, options.priority)
            return Rpc("infer", {"request": request, "timeout": timeout, "metadata": metadata})

        answer = yield from call_with_retries(
            infer, self.deadline, self.config.retry, self.config.url, self.request_id
        )
        columns = None if self.labels is None else self.options.columns(chunk, self.labels)
        return parse_result(answer, chunk.stop - chunk.start, columns, self.request_id)

    def merge(self, results: Sequence[ScoreResult]) -> ScoreResult:
        """Merge the results of all chunks, given in order."""
        own = self.options.label_counts is not None or self.options.item_adapters is not None
        return merge_chunks(results, self.request_id, pad=own)


def text_call(
    config: ClientConfig,
    query: str,
    items: Sequence[str],
    labels: Sequence[str] | None,
    label_token_ids: TokenIds | None,
    options: ScoreOptions,
    timeout: float | None,
    request_id: str,
) -> ScoreCall:
    """Build a call of the model ``score``, which takes text.

    Args:
        timeout: Seconds for the whole call; None: no limit.

    Raises:
        InvalidRequest: An argument that cannot be sent.
    """
    deadline = Deadline(timeout)
    query_bytes = encode_text("'query'", query)
    item_bytes = encode_texts("items", items)
    query_input = text_tensor("query", [query_bytes])
    shared_bytes, columns = len(query_bytes), None
    ids, label_bytes = None, None
    if label_token_ids is not None:
        ids = as_id_array("'label_token_ids'", label_token_ids)
        columns = options.count(len(ids))
    if labels is not None:
        label_bytes = encode_texts("labels", labels)
        shared_bytes += sum(map(len, label_bytes))
        columns = len(label_bytes)
    options.check_counts(len(item_bytes), columns or 0)

    def inputs(chunk: slice) -> list[Tensor]:
        own = options.labels_of(chunk)
        return [
            query_input,
            *([] if ids is None else [id_tensor("label_token_ids", ids[options.ids_of(chunk)])]),
            *([] if label_bytes is None else [text_tensor("labels", label_bytes[own])]),
            text_tensor("items", item_bytes[chunk]),
        ]

    return ScoreCall(
        config=config,
        model="score",
        chunks=split_into_chunks(
            list(map(len, item_bytes)), shared_bytes, config.limits.max_items, config.limits.max_bytes
        ),
        inputs=inputs,
        labels=columns,
        options=options,
        deadline=deadline,
        request_id=request_id,
    )


def ids_call(
    config: ClientConfig,
    query_ids: TokenIds,
    item_ids: Sequence[TokenIds],
    label_token_ids: TokenIds,
    options: ScoreOptions,
    timeout: float | None,
    request_id: str,
) -> ScoreCall:
    """Build a call of the model ``scorer``, which takes token ids.

    Args:
        label_token_ids: Empty for a classifier.
        timeout: Seconds for the whole call; None: no limit.

    Raises:
        InvalidRequest: An argument that cannot be sent.
    """
    deadline = Deadline(timeout)
    layout = lay_out(query_ids, item_ids)
    sizes = layout.sizes
    labels = as_id_array("'label_token_ids'", label_token_ids)
    columns = options.count(len(labels))
    options.check_counts(len(sizes), columns)

    def inputs(chunk: slice) -> list[Tensor]:
        part = layout.part(chunk)
        return [
            id_tensor("input_ids", part.ids),
            id_tensor("delimiter_indices", part.delimiters),
            id_tensor("label_token_ids", labels[options.ids_of(chunk)]),
        ]

    # n items have n + 1 delimiters: one is counted with each item, one with the query.
    shared = int(layout.delimiters[0]) + 1
    chunks = split_into_chunks(sizes, shared, config.limits.max_items, config.limits.max_tokens)
    if options.places not in (None, "all") and len(chunks) > 1:
        raise InvalidRequest("'places' needs a call that one request can hold")
    return ScoreCall(
        config=config,
        model="scorer",
        chunks=chunks,
        inputs=inputs,
        labels=columns if columns or options.label_counts is not None else None,
        options=options,
        deadline=deadline,
        request_id=request_id,
    )
