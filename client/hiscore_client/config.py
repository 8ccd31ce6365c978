"""The settings of a client."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from tritonclient.grpc._client import MAX_GRPC_MESSAGE_SIZE

from hiscore_client.chunking import ChunkLimits
from hiscore_client.errors import InvalidRequest
from hiscore_client.retry import RetryPolicy

DEFAULT_URL = "localhost:8001"
# Triton treats pings less than 5 minutes apart as abuse and closes the connection.
KEEPALIVE_MS = 301_000
MAX_RECONNECT_BACKOFF_MS = 2_000

# If the url's name resolves to several addresses: use the first that answers, or each in turn.
LoadBalancing: TypeAlias = Literal["pick_first", "round_robin"]
# gRPC metadata of every request, or what gives that of the next one.
Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class ClientConfig:
    """The settings of a client; see `ScoreClient` for what they mean.

    Raises:
        InvalidRequest: A value that cannot work.
    """

    url: str
    limits: ChunkLimits
    retry: RetryPolicy
    max_in_flight: int
    headers: Headers = field(default_factory=dict)
    load_balancing: LoadBalancing = "pick_first"
    tls_name: str = ""

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

    def metadata(self) -> dict[str, str]:
        """gRPC metadata of the next request."""
        return dict(self.headers() if callable(self.headers) else self.headers)

    def channel_args(self) -> list[tuple[str, Any]]:
        """All of gRPC's channel options: passing tritonclient any drops all of its defaults."""
        return [
            ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
            ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", 20_000),
            # By default, a client that starts before its server may take two minutes to notice it.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
            ("grpc.service_config", json.dumps({"loadBalancingConfig": [{self.load_balancing: {}}]})),
            *([("grpc.ssl_target_name_override", self.tls_name)] if self.tls_name else []),
        ]


def make_config(
    url: str | None,
    limits: ChunkLimits | None,
    retry: RetryPolicy | None,
    max_in_flight: int,
    headers: Headers | None,
    load_balancing: LoadBalancing = "pick_first",
) -> ClientConfig:
    """Fill in defaults. See `ScoreClient` for the arguments.

    Args:
        url: None: the environment variable HISCORE_URL, or else localhost:8001.
        limits: None: the defaults of `ChunkLimits`.
        retry: None: the defaults of `RetryPolicy`.
        max_in_flight: At least 1.
        headers: None: none.
    """
    return ClientConfig(
        url=url or os.environ.get("HISCORE_URL") or DEFAULT_URL,
        limits=limits or ChunkLimits(),
        retry=retry or RetryPolicy(),
        max_in_flight=max_in_flight,
        headers=headers if callable(headers) else dict(headers or {}),
        load_balancing=load_balancing,
        tls_name=os.environ.get("HISCORE_TLS_NAME", ""),
    )
