"""Every setting, its default and its bounds: the launcher's from the environment, a model's from its config.

The launcher turns `ServeSettings` into the string parameters of each model's ``config.pbtxt``; the models read
those back as `TokenizerSettings`, `ScorerSettings` and `DecodeSettings`. An unknown or missing parameter is an
error.
"""

import json
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from hiscore.logs import LogFormat

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
# The request id of the launcher's own calls: they are no work, and the scorer does not count them.
CANARY_ID = "hiscore-canary"

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "fp8"]
Selector = Literal["dense", "exact", "quest", "dsa"]
Backup = Literal["ring", "deferred", "blocking"]
OnFault = Literal["restart", "exit"]


class Limits(BaseModel):
    """What one call may hold; more is refused before any work is done on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_items: PositiveInt = Field(default=10_000, description="items in one call")
    max_labels: PositiveInt = Field(default=1_000, description="labels in one call")
    max_call_tokens: PositiveInt = Field(
        default=4_000_000, description="tokens in one call, the query counted once"
    )
    max_text_bytes: PositiveInt = Field(
        default=8 * 2**20, description="bytes of text in one call, labels included"
    )


class ModelSettings(BaseModel):
    """Parameters of every model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: str
    max_queue: PositiveInt = Field(default=1_024, description="waiting calls before UNAVAILABLE")
    queue_timeout_s: PositiveInt = Field(default=600, description="longest wait; a client may ask for less")
    log_format: LogFormat = Field(default="text", description="log lines for people, or as JSON for programs")


class TokenizerSettings(Limits, ModelSettings):
    """Parameters of the ``tokenizer`` model."""


class ScorerSettings(Limits, ModelSettings):
    """Parameters of the ``scorer`` model."""

    dtype: Dtype = "auto"
    max_batch_tokens: PositiveInt = Field(default=16_384, description="token budget of a batch and a forward")
    max_queue_tokens: PositiveInt = Field(
        default=16_000_000, description="tokens of all calls that wait or are computed, before UNAVAILABLE"
    )
    query_cache_bytes: NonNegativeInt = Field(
        default=2**30, description="keys and values of recent queries kept for calls to come; 0: none"
    )


class CacheSettings(BaseModel):
    """How ``decode`` keeps keys and values: all of them on the host, a few on the device."""

    # Before the sizes: their checks look at it.
    selector: str = "dense"
    sparse_top_k: PositiveInt = Field(default=2_048, description="tokens selected in a step")
    device_buffer_size: PositiveInt = Field(
        default=4_096, validate_default=True, description="tokens of a stream kept on the device"
    )
    quest_dense_layers: NonNegativeInt = Field(
        default=2, description="first layers that attend to everything under quest, whole on the device"
    )
    backup: Backup = Field(default="ring", description="when a step's keys and values go to the host")
    backup_ring: PositiveInt = Field(
        default=32,
        validate_default=True,
        description="newest tokens whose way to the host may not have ended",
    )
    host_kv_bytes: NonNegativeInt = Field(default=0, description="0: from the machine's memory")
    device_kv_bytes: NonNegativeInt = Field(default=0, description="0: from the device's memory")
    max_streams: NonNegativeInt = Field(default=0, description="streams at once; 0: from the memory")

    @field_validator("device_buffer_size")
    @classmethod
    def _holds_what_is_selected(cls, size: int, info: ValidationInfo) -> int:
        top_k = info.data.get("sparse_top_k", 0)
        if info.data.get("selector") != "dense" and size < top_k:
            raise ValueError(f"must be at least SPARSE_TOP_K, which is {top_k}")
        return size

    @field_validator("backup_ring")
    @classmethod
    def _is_always_selected(cls, ring: int, info: ValidationInfo) -> int:
        top_k = info.data.get("sparse_top_k", ring)
        if info.data.get("selector") != "dense" and info.data.get("backup") == "ring" and ring > top_k:
            raise ValueError(
                f"must be at most SPARSE_TOP_K, which is {top_k}: the newest are always selected"
            )
        return ring


class DecodeSettings(CacheSettings, ModelSettings):
    """Parameters of the ``decode`` model."""

    dtype: Dtype = "auto"
    selector: Selector
    max_text_bytes: PositiveInt = Field(
        default=Limits.model_fields["max_text_bytes"].default, description="bytes of text of one prompt"
    )


class ServeSettings(CacheSettings, BaseSettings):
    """What ``make serve`` reads from its environment; a port of 0 takes a free one."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_ignore_empty=True)

    model: str = DEFAULT_MODEL
    models: str = Field(
        default="", description="comma-separated models to load; empty: all the checkpoint can serve"
    )
    device: Device = "auto"
    dtype: Dtype = "auto"
    bind_address: str = Field(default="127.0.0.1", description="address to listen on")
    allow_known_cves: bool = Field(
        default=False, description="listen beyond loopback with a Triton that has known vulnerabilities"
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM file: TLS for gRPC; HTTP then keeps to loopback"
    )
    tls_key: Path | None = Field(default=None, description="PEM file: the certificate's key")
    tls_client_ca: Path | None = Field(
        default=None, description="PEM file: only callers with a certificate of this CA"
    )
    http_port: int = Field(default=8000, ge=0, le=65535)
    grpc_port: int = Field(default=8001, ge=0, le=65535)
    metrics_port: int = Field(default=8002, ge=0, le=65535)
    health_port: int | None = Field(
        default=None, ge=0, le=65535, description="the launcher's own health; none: not served"
    )
    log_format: LogFormat = ModelSettings.model_fields["log_format"].default
    trace_url: str | None = Field(
        default=None, description="where traces go, by OTLP over HTTP; none: nowhere"
    )
    trace_rate: PositiveInt = Field(default=1_000, description="of so many calls one is traced")
    max_batch_tokens: PositiveInt = ScorerSettings.model_fields["max_batch_tokens"].default
    query_cache_bytes: NonNegativeInt = ScorerSettings.model_fields["query_cache_bytes"].default
    selector: Literal["auto", "dense", "exact", "quest", "dsa"] = Field(
        default="auto", description="auto: dsa where the checkpoint has an indexer, else quest"
    )
    max_batch_calls: PositiveInt = Field(default=64, description="calls that Triton hands over at once")
    max_queue: PositiveInt = ModelSettings.model_fields["max_queue"].default
    max_queue_tokens: PositiveInt = ScorerSettings.model_fields["max_queue_tokens"].default
    queue_timeout_s: PositiveInt = ModelSettings.model_fields["queue_timeout_s"].default
    ready_timeout_s: PositiveInt = Field(default=600, description="longest wait until all models are loaded")
    drain_timeout_s: PositiveInt = Field(
        default=30, description="longest wait for running calls when stopping"
    )
    watchdog: OnFault = Field(default="restart", description="what follows when a model dies or hangs")
    max_restarts: PositiveInt = Field(default=5, description="restarts within a window before giving up")
    restart_window_s: PositiveInt = Field(default=600, description="the window for them")
    canary_seconds: NonNegativeInt = Field(
        default=30, description="seconds without work after which a model is asked for an answer; 0: never"
    )
    canary_timeout_s: PositiveInt = Field(
        default=60, description="longest wait for it, more than the longest batch takes"
    )
    canary_misses: PositiveInt = Field(default=3, description="canaries in a row without an answer: a fault")
    shm_bytes: PositiveInt = Field(
        default=64 * 2**20, description="shared memory per model instance, to begin with"
    )
    model_repository: Path = Field(
        default=Path(__file__).resolve().parents[1] / "model_repository",
        description="where the config templates are",
    )
    max_items: PositiveInt = Limits.model_fields["max_items"].default
    max_labels: PositiveInt = Limits.model_fields["max_labels"].default
    max_call_tokens: PositiveInt = Limits.model_fields["max_call_tokens"].default
    max_text_bytes: PositiveInt = Limits.model_fields["max_text_bytes"].default

    @field_validator("trace_url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str | None) -> str | None:
        # Triton takes it from the command line, which every user of the machine can read.
        parts = urlsplit(url or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("must be like http://host:4318/v1/traces, without a user or a password")
        return url


Settings = TypeVar("Settings", bound=BaseModel)


def from_model_config(settings: type[Settings], model_config: str) -> Settings:
    """Read a model's settings from Triton's ``args["model_config"]`` (JSON), strictly."""
    parameters: dict[str, Any] = json.loads(model_config).get("parameters", {})
    return settings(**{name: value["string_value"] for name, value in parameters.items()})
