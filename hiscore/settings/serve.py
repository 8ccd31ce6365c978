"""The settings that ``make serve`` reads from its environment."""

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hiscore.settings.api import ApiSettings
from hiscore.settings.groups import (
    AdapterSettings,
    CacheSettings,
    CheckpointName,
    Computing,
    Device,
    Limits,
    LogSettings,
    Port,
    QueueSettings,
    SamplingSettings,
    ScoringSettings,
    Settings,
)
from hiscore.settings.words import AUTO_TEXT, OFF, OFF_NUMBER


class ModelChoice(Settings):
    """The models to load, the device, and the processes on the CPU."""

    section = "Model and device"

    models: Annotated[str, AUTO_TEXT] = Field(
        default="",
        description="models to load, separated by commas: `score`, `classify`, `tokenizer`, `scorer`, `decode`; "
        "auto: all that the checkpoint can serve",
    )
    device: Device = Field(default="auto", description="auto: a GPU if there is one")
    cpu_instances: PositiveInt = Field(
        default=1,
        description="instances of `scorer` and of `decode` on the CPU, each with a share of cores and memory; a "
        "GPU has one",
    )


class Network(Settings):
    """Who can reach the server, and where."""

    section = "Addresses and TLS"

    bind_address: str = Field(default="127.0.0.1", description="address to listen on")
    allow_known_cves: bool = Field(
        default=False, description="allow other addresses than loopback with a Triton older than 26.07"
    )
    tls_cert: Annotated[Path | None, OFF] = Field(
        default=None,
        description="PEM file: TLS for gRPC and the HTTP API. Triton's HTTP, for which there is none, then stays "
        "on loopback",
    )
    tls_key: Annotated[Path | None, OFF] = Field(default=None, description="PEM file: the certificate's key")
    tls_client_ca: Annotated[Path | None, OFF] = Field(
        default=None, description="PEM file: only callers with a certificate of this CA are let in"
    )
    http_port: Port = Field(default=8000, description="Triton's HTTP; 0: any free port")
    grpc_port: Port = Field(default=8001, description="Triton's gRPC; 0: any free port")
    metrics_port: Port = Field(default=8002, description="Triton's metrics; 0: any free port")
    health_port: Annotated[Port | None, OFF] = Field(
        default=None,
        description="the launcher's own `/livez`, `/readyz` and `/metrics`; 0: any free port",
    )


class TraceSettings(LogSettings):
    """The collector of traces."""

    trace_url: Annotated[str | None, OFF] = Field(
        default=None,
        description="collector of OpenTelemetry traces (OTLP over HTTP), such as `http://host:4318/v1/traces`",
    )
    trace_rate: PositiveInt = Field(
        default=1_000,
        description="trace 1 in this many requests, and every request that carries a `traceparent`",
    )

    @field_validator("trace_url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str | None) -> str | None:
        # Triton takes it from the command line, which every user of the machine can read.
        parts = urlsplit(url or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("must be like http://host:4318/v1/traces, without a user or a password")
        return url


class TritonBatching(QueueSettings):
    """The number of calls that Triton hands over."""

    max_batch_calls: PositiveInt = Field(
        default=64,
        description="calls that Triton hands to a model at once; to each of several scorer instances at most 8",
    )


class Lifecycle(Settings):
    """Starting and stopping."""

    section = "Start and stop"

    ready_timeout_s: PositiveInt = Field(default=600, description="seconds until all models must be loaded")
    drain_timeout_s: PositiveInt = Field(
        default=30, description="seconds that running calls get when the server stops"
    )


class FaultHandling(Settings):
    """Detection of a dead or hanging model, and restarts."""

    section = "Faults"

    max_restarts: Annotated[NonNegativeInt, OFF_NUMBER] = Field(
        default=5,
        description="restarts within ten minutes when a model dies or hangs; after that, exit with code 1",
    )
    canary_seconds: Annotated[NonNegativeInt, OFF_NUMBER] = Field(
        default=30,
        description="seconds without work after which a model is sent a canary. It has twice as many to "
        "answer, which must be more than a batch takes on a GPU, a layer on a CPU",
    )


class ServeSettings(
    FaultHandling,
    Lifecycle,
    TraceSettings,
    SamplingSettings,
    CacheSettings,
    AdapterSettings,
    ScoringSettings,
    Limits,
    TritonBatching,
    ApiSettings,
    Network,
    Computing,
    ModelChoice,
    CheckpointName,
    BaseSettings,
):
    """All settings of a server, from the environment: the field ``max_items`` is the variable ``MAX_ITEMS``."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_ignore_empty=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _read_an_empty_api_port(cls, values: dict[str, Any]) -> dict[str, Any]:
        # Other empty variables count as not set. This one means that there is to be no API.
        if "api_port" not in values and os.environ.get("API_PORT") == "":
            return {**values, "api_port": None}
        return values
