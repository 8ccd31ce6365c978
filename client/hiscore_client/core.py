"""What both clients share: everything but the I/O."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput
from tritonclient.grpc._client import MAX_GRPC_MESSAGE_SIZE

from hiscore_client.call import Call, Options
from hiscore_client.chunks import ChunkLimits, split
from hiscore_client.errors import InvalidRequest
from hiscore_client.generation import Generation, GenerationOptions
from hiscore_client.retry import Deadline, RetryPolicy
from hiscore_client.wire import as_ids, encode_text, encode_texts, ids_input, lay_out, text_input

DEFAULT_URL = "localhost:8001"
# Triton counts pings less than 5 minutes apart as abuse and closes the connection.
KEEPALIVE_MS = 301_000
LONGEST_RECONNECT_PAUSE_MS = 2_000

# Of the addresses that the url's name has: the first that answers, or each in turn.
LoadBalancing = Literal["pick_first", "round_robin"]

TokenIds = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Core:
    """A client's settings, and the calls made under them."""

    url: str
    limits: ChunkLimits
    retry: RetryPolicy
    max_in_flight: int
    headers: Mapping[str, str] = field(default_factory=dict)
    load_balancing: LoadBalancing = "pick_first"

    def __post_init__(self) -> None:
        if self.url.startswith(("http://", "https://", "grpc://")):
            raise InvalidRequest(
                f"'url' is '{self.url}': give host:port of the gRPC endpoint, without a scheme"
            )
        if self.max_in_flight < 1:
            raise InvalidRequest(f"'max_in_flight' is {self.max_in_flight}: must be at least 1")
        known = get_args(LoadBalancing)
        if self.load_balancing not in known:
            raise InvalidRequest(f"'load_balancing' is '{self.load_balancing}': known are {', '.join(known)}")

    def channel_args(self) -> list[tuple[str, Any]]:
        """gRPC's settings, all of them: giving tritonclient any of them drops every default of its own."""
        return [
            ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
            ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", 20_000),
            # Without a bound, a client that starts before its server may notice it two minutes late.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_PAUSE_MS),
            ("grpc.service_config", json.dumps({"loadBalancingConfig": [{self.load_balancing: {}}]})),
        ]

    def text_call(
        self,
        query: str,
        items: Sequence[str],
        labels: Sequence[str] | None,
        label_token_ids: TokenIds | None,
        options: Options,
        timeout: float | None,
        request_id: str,
    ) -> Call:
        """A call of the model ``score``."""
        deadline = Deadline(timeout)
        query_bytes = encode_text("'query'", query)
        item_bytes = encode_texts("items", items)
        shared = [text_input("query", [query_bytes])]
        fixed, columns = len(query_bytes), None
        if label_token_ids is not None:
            ids = as_ids("'label_token_ids'", label_token_ids)
            shared.append(ids_input("label_token_ids", ids))
            columns = len(ids)
        if labels is not None:
            label_bytes = encode_texts("labels", labels)
            shared.append(text_input("labels", label_bytes))
            fixed += sum(map(len, label_bytes))
            columns = len(label_bytes)
        return Call(
            model="score",
            chunks=split(list(map(len, item_bytes)), fixed, self.limits.max_items, self.limits.max_bytes),
            inputs=lambda chunk: [*shared, text_input("items", item_bytes[chunk])],
            labels=columns,
            options=options,
            deadline=deadline,
            request_id=request_id,
            url=self.url,
            retry=self.retry,
            headers=self.headers,
        )

    def ids_call(
        self,
        query_ids: TokenIds,
        item_ids: Sequence[TokenIds],
        label_token_ids: TokenIds,
        options: Options,
        timeout: float | None,
        request_id: str,
    ) -> Call:
        """A call of the model ``scorer``."""
        deadline = Deadline(timeout)
        query = as_ids("'query_ids'", query_ids)
        items = [as_ids(f"'item_ids' at place {place}", ids) for place, ids in enumerate(item_ids)]
        labels = as_ids("'label_token_ids'", label_token_ids)

        def inputs(chunk: slice) -> list[InferInput]:
            input_ids, delimiter_indices = lay_out(query, items[chunk])
            return [
                ids_input("input_ids", input_ids),
                ids_input("delimiter_indices", delimiter_indices),
                ids_input("label_token_ids", labels),
            ]

        return Call(
            model="scorer",
            # Each item brings its delimiter; the query brings the one more that every layout has.
            chunks=split(
                [len(item) + 1 for item in items],
                len(query) + 1,
                self.limits.max_items,
                self.limits.max_tokens,
            ),
            inputs=inputs,
            labels=len(labels) or None,
            options=options,
            deadline=deadline,
            request_id=request_id,
            url=self.url,
            retry=self.retry,
            headers=self.headers,
        )

    def generation(
        self, prompt: str | TokenIds, options: GenerationOptions, timeout: float | None, request_id: str
    ) -> Generation:
        """A call of the model ``decode``."""
        return Generation(
            prompt=encode_text("'prompt'", prompt) if isinstance(prompt, str) else as_ids("'prompt'", prompt),
            parameters=options.parameters(),
            deadline=Deadline(timeout),
            request_id=request_id,
            url=self.url,
            retry=self.retry,
            headers=self.headers,
        )


def make_core(
    url: str | None,
    limits: ChunkLimits | None,
    retry: RetryPolicy | None,
    max_in_flight: int,
    headers: Mapping[str, str] | None,
    load_balancing: LoadBalancing = "pick_first",
) -> Core:
    """Settings with their defaults; the address comes from the argument, or HISCORE_URL, or is localhost:8001."""
    return Core(
        url=url or os.environ.get("HISCORE_URL") or DEFAULT_URL,
        limits=limits or ChunkLimits(),
        retry=retry or RetryPolicy(),
        max_in_flight=max_in_flight,
        headers=dict(headers or {}),
        load_balancing=load_balancing,
    )
