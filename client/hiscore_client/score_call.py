"""A scoring call, split into chunks: each chunk is one request to the server."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritonclient.grpc import InferInput

from hiscore_client.chunking import split_into_chunks
from hiscore_client.config import ClientConfig
from hiscore_client.deadline import Deadline
from hiscore_client.errors import InvalidRequest
from hiscore_client.results import ScoreResult, merge_chunks, parse_result
from hiscore_client.retry import call_with_retries
from hiscore_client.sans_io import Operation, Rpc
from hiscore_client.tensors import (
    TokenIds,
    as_id_array,
    encode_text,
    encode_texts,
    id_tensor,
    insert_delimiters,
    text_tensor,
)


@dataclass(frozen=True)
class ScoreOptions:
    """Options of a call; those at their default are not sent."""

    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    priority: int = 0

    def parameters(self) -> dict[str, bool | float]:
        """The request parameters.

        Raises:
            InvalidRequest: A temperature that Triton cannot pass on, or a negative priority.
        """
        # Triton hands parameters to a model as JSON, which has no NaN.
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidRequest(f"'temperature' must be finite and greater than 0, not {self.temperature}")
        if self.priority < 0:
            raise InvalidRequest(f"'priority' must be at least 0, not {self.priority}")
        given: dict[str, bool | float] = {}
        if self.apply_softmax:
            given["apply_softmax"] = True
        if self.temperature != 1.0:
            given["temperature"] = float(self.temperature)
        if self.item_first:
            given["item_first"] = True
        return given


@dataclass(frozen=True)
class ScoreCall:
    """One call, split into chunks. Each chunk is retried on its own; all share one deadline.

    Args:
        config: Settings of the client.
        model: ``score`` or ``scorer``.
        chunks: Slices of the items, at least one.
        inputs: Builds the tensors of one chunk.
        labels: Columns of the scores; None for a classifier, which has its own labels.
        options: Options of the call.
        deadline: Of the whole call.
        request_id: Of the whole call.
    """

    config: ClientConfig
    model: str
    chunks: list[slice]
    inputs: Callable[[slice], list[InferInput]]
    labels: int | None
    options: ScoreOptions
    deadline: Deadline
    request_id: str

    def request(self, index: int) -> Operation[ScoreResult]:
        """Send one chunk and read its result; its tensors are built when the operation starts."""
        chunk = self.chunks[index]
        arguments = {
            "model_name": self.model,
            "inputs": self.inputs(chunk),
            "request_id": self.request_id if len(self.chunks) == 1 else f"{self.request_id}/{index}",
            "priority": self.options.priority,
            "parameters": self.options.parameters(),
            "headers": self.config.headers or None,
        }

        def infer(remaining: float) -> Rpc:
            if math.isinf(remaining):
                return Rpc("infer", arguments)
            # Seconds for gRPC, microseconds for Triton's queue, which drops the call once its time is up.
            microseconds = max(1, int(remaining * 1e6))
            return Rpc("infer", {**arguments, "client_timeout": remaining, "timeout": microseconds})

        answer = yield from call_with_retries(
            infer, self.deadline, self.config.retry, self.config.url, self.request_id
        )
        return parse_result(answer, chunk.stop - chunk.start, self.labels, self.request_id)

    def merge(self, results: Sequence[ScoreResult]) -> ScoreResult:
        """Merge the results of all chunks, given in order."""
        return merge_chunks(results, self.request_id)


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
        config: Settings of the client.
        query: What all items share.
        items: Each is scored on its own.
        labels: Labels as text, or None.
        label_token_ids: Labels as token ids, or None.
        options: Options of the call.
        timeout: Seconds for the whole call; None: no limit.
        request_id: Of the call.

    Raises:
        InvalidRequest: An argument that cannot be sent.
    """
    deadline = Deadline(timeout)
    query_bytes = encode_text("'query'", query)
    item_bytes = encode_texts("items", items)
    shared_inputs = [text_tensor("query", [query_bytes])]
    shared_bytes, columns = len(query_bytes), None
    if label_token_ids is not None:
        ids = as_id_array("'label_token_ids'", label_token_ids)
        shared_inputs.append(id_tensor("label_token_ids", ids))
        columns = len(ids)
    if labels is not None:
        label_bytes = encode_texts("labels", labels)
        shared_inputs.append(text_tensor("labels", label_bytes))
        shared_bytes += sum(map(len, label_bytes))
        columns = len(label_bytes)
    return ScoreCall(
        config=config,
        model="score",
        chunks=split_into_chunks(
            list(map(len, item_bytes)), shared_bytes, config.limits.max_items, config.limits.max_bytes
        ),
        inputs=lambda chunk: [*shared_inputs, text_tensor("items", item_bytes[chunk])],
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
        config: Settings of the client.
        query_ids: What all items share.
        item_ids: The ids of each item.
        label_token_ids: Empty for a classifier.
        options: Options of the call.
        timeout: Seconds for the whole call; None: no limit.
        request_id: Of the call.

    Raises:
        InvalidRequest: An argument that cannot be sent.
    """
    deadline = Deadline(timeout)
    query = as_id_array("'query_ids'", query_ids)
    items = [as_id_array(f"'item_ids' at place {index}", ids) for index, ids in enumerate(item_ids)]
    labels = as_id_array("'label_token_ids'", label_token_ids)

    def inputs(chunk: slice) -> list[InferInput]:
        input_ids, delimiter_indices = insert_delimiters(query, items[chunk])
        return [
            id_tensor("input_ids", input_ids),
            id_tensor("delimiter_indices", delimiter_indices),
            id_tensor("label_token_ids", labels),
        ]

    # n items have n + 1 delimiters: one is counted with each item, one with the query.
    chunks = split_into_chunks(
        [len(item) + 1 for item in items], len(query) + 1, config.limits.max_items, config.limits.max_tokens
    )
    return ScoreCall(
        config=config,
        model="scorer",
        chunks=chunks,
        inputs=inputs,
        labels=len(labels) or None,
        options=options,
        deadline=deadline,
        request_id=request_id,
    )
