"""Settings of the HTTP API: `ApiSettings` are read by the launcher, `ApiProcessSettings` by its own process."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hiscore.settings.groups import AdapterSettings, Limits, LogSettings, Port, QueueSettings, Settings
from hiscore.settings.words import AUTO, AUTO_TEXT, OFF

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/,\s]+")
BACKEND = re.compile(r"\S+:\d+|unix:\S+")


class ApiSettings(Settings):
    """Settings of the HTTP API: its address, what it accepts, the prompts it makes."""

    section = "HTTP API"

    api_port: Annotated[Port | None, OFF] = Field(
        default=8080,
        description="the HTTP API; 0: any free port; set to nothing (`API_PORT=`): off",
    )
    api_address: Annotated[str | None, AUTO] = Field(
        default=None, description="address that the API listens on; auto: `BIND_ADDRESS`"
    )
    api_backend: Annotated[str | None, OFF] = Field(
        default=None,
        description="`host:port` of the gRPC endpoint of models that run elsewhere: only the API is started. "
        "`MODEL` must be the same checkpoint: its tokenizer and templates are used. "
        "`dns:///name:port`: all addresses of the name get requests in turn",
    )
    api_processes: PositiveInt = Field(default=1, description="processes that share the API's port")
    api_model_names: Annotated[str, AUTO_TEXT] = Field(
        default="",
        description="names, separated by commas, that requests may give as `model`; the first is shown in "
        "answers. auto: the name of the checkpoint, and requests may give any",
    )
    api_keys_file: Annotated[Path | None, OFF] = Field(
        default=None, description="file with one API key a line: callers must send one"
    )
    api_cors_origins: Annotated[str | None, OFF] = Field(
        default=None,
        description="origins, separated by commas, whose pages may call the API from a browser, such as "
        "`https://app.example.com`; `*`: any",
    )
    api_page: bool = Field(
        default=True,
        description="a page at `/` to try the routes from a browser; it needs no network but the API's",
    )
    prompt_template: Annotated[str, AUTO_TEXT] = Field(
        default="",
        description="how rerank requests become prompts: the name of a built-in template "
        "([templates](api/rerank.md#templates)) or the path of a Jinja file. auto: chosen by the checkpoint",
    )
    prompt_labels: Annotated[str, AUTO_TEXT] = Field(
        default="",
        description="two texts, separated by a comma, that mean relevant and not relevant behind the prompt; each "
        "may have several tokens there, spaces included; `Yes,` with nothing behind the comma: the logit of the "
        "one. auto: those of the template",
    )
    calibration: Annotated[Path | None, OFF] = Field(
        default=None,
        description="file of `hiscore calibrate`: temperatures by which answers of `/v1/decisions` and "
        "`/v1/systemone` are calibrated. off: they are as the model gives them",
    )

    @field_validator("api_cors_origins")
    @classmethod
    def _names_origins(cls, origins: str | None) -> str | None:
        for origin in [] if origins in (None, "*") else origins.split(","):
            if not ORIGIN.fullmatch(origin.strip()):
                raise ValueError("must be origins such as https://app.example.com, separated by commas, or *")
        return origins

    @field_validator("api_backend")
    @classmethod
    def _names_a_port(cls, backend: str | None) -> str | None:
        if backend and not BACKEND.fullmatch(backend):
            raise ValueError("must be host:port")
        return backend


class ApiBounds(ApiSettings, AdapterSettings, QueueSettings):
    """The settings that bound a request, and bounds that no deployment sets: callers meet them only by abuse."""

    max_body_bytes: PositiveInt = 32 * 2**20
    """Bytes of a body, after decompression."""
    compute_timeout_s: PositiveInt = 600
    """Seconds that a request may take beside what it may wait (QUEUE_TIMEOUT_S): a stream of 32,768 tokens has to
    make 55 a second."""

    @property
    def request_timeout_s(self) -> int:
        """Seconds that a request may take."""
        return self.queue_timeout_s + self.compute_timeout_s


class ApiProcessSettings(ApiBounds, LogSettings, BaseSettings):
    """All settings of the API's own process, from the environment that the launcher gives it."""

    model_config = SettingsConfigDict(
        extra="ignore", frozen=True, env_ignore_empty=True, protected_namespaces=(), env_prefix="HISCORE_"
    )

    model: str = ""
    """MODEL as it was set: files may have lost the name by which a checkpoint is known."""
    checkpoint: Path
    """The checkpoint's directory, resolved by the launcher."""
    backend: str
    """``host:port`` of the models' gRPC."""
    listen_address: str = "127.0.0.1"
    listen_port: PositiveInt
    listen_tls_cert: Path | None = None
    listen_tls_key: Path | None = None
    listen_tls_client_ca: Path | None = None
    """PEM files: TLS_CERT, TLS_KEY and TLS_CLIENT_CA. Their names must not be those of the SDK's own variables."""
    served_models: str
    """The models that are there, separated by commas."""
    max_context: int | None = None
    max_call_tokens: PositiveInt = Limits().max_call_tokens
    drain_timeout_s: NonNegativeInt = 30
