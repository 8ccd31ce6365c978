"""The API's process: ``python -m hiscore.api``, started by the launcher with its settings in the environment.

``hiscore explain MODEL`` is a program of it, too: reading a checkpoint takes the server's package.
"""

import argparse
import logging
import os
import ssl
import sys
import tempfile
from pathlib import Path

import uvicorn
from pydantic import ValidationError
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from hiscore.api.app import create_app
from hiscore.checkpoint import CheckpointError, published_name, resolve
from hiscore.logs import LogFormat, configure_model
from hiscore.models.support import servable
from hiscore.prompts.rerank import make_prompts
from hiscore.settings import ApiProcessSettings

MAX_CONNECTIONS = 1_024
"""Connections of a process, each of which may hold a body; further ones are answered with 503."""


def main() -> int:
    """Serve until a SIGTERM; requests that run then are finished first. With ``--check`` nothing is served."""
    if sys.argv[1:2] == ["explain"]:
        return _explain(sys.argv[2:])
    try:
        settings = ApiProcessSettings()  # type: ignore[call-arg]
    except ValidationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _log_as_models(settings.log_format)
    if sys.argv[1:] == ["--check"]:
        return _check(settings)
    if settings.api_processes == 1:
        config = uvicorn_config(settings)
        # Left to itself, asyncio would make a socket that takes no IPv4 on ::. A signal ends the process in here.
        uvicorn.Server(config).run([config.bind_socket()])
        return 0
    with tempfile.TemporaryDirectory(prefix="hiscore-api-") as directory:
        # Each process writes its numbers there, and any of them serves the sums.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
        config = uvicorn_config(settings)
        Multiprocess(config, sockets=[config.bind_socket()]).run()
    return 0


def _check(settings: ApiProcessSettings) -> int:
    """Make the application, which logs what it refuses, and serve nothing."""
    try:
        create_app(settings, strict=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def explain(model: str, template: str = "", labels: str = "") -> str:
    """Show the recipe of MODEL under PROMPT_TEMPLATE and PROMPT_LABELS, a line for each part with what says it.

    Raises:
        CheckpointError: There is no such checkpoint.
        ValueError: The scorer does not serve it, or it ranks nothing; the message says why.
    """
    directory = resolve(model)
    if reason := servable(directory).left_out.get("scorer"):
        raise ValueError(reason)
    names = published_name(directory), Path(model).name
    _, recipe = make_prompts(directory, template, labels.split(",") if labels else (), names)
    return "\n".join([recipe.table(), *(f"warning: {each}" for each in recipe.warnings)])


def _explain(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hiscore explain", description="Show how a checkpoint ranks documents, and what says so."
    )
    parser.add_argument("model", help="a directory, or a repository of a hub, as in MODEL")
    model = parser.parse_args(arguments).model
    try:
        print(explain(model, *(os.environ.get(name, "") for name in ("PROMPT_TEMPLATE", "PROMPT_LABELS"))))
    except (CheckpointError, OSError, ValueError) as error:
        print(f"hiscore: {error}", file=sys.stderr)
        return 2
    return 0


def uvicorn_config(settings: ApiProcessSettings) -> uvicorn.Config:
    return uvicorn.Config(
        "hiscore.api.__main__:app",
        factory=True,
        host=settings.listen_address,
        port=settings.listen_port,
        loop="uvloop",
        http="hiscore.api.http.protocol:LimitedProtocol",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        workers=settings.api_processes,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=settings.drain_timeout_s,
        ssl_certfile=settings.listen_tls_cert,
        ssl_keyfile=settings.listen_tls_key,
        ssl_ca_certs=str(settings.listen_tls_client_ca) if settings.listen_tls_client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.listen_tls_client_ca else ssl.CERT_NONE,
    )


def app() -> ASGIApp:
    """Make the application of a process that uvicorn has just started."""
    settings = ApiProcessSettings()  # type: ignore[call-arg]
    _log_as_models(settings.log_format)
    return create_app(settings)


def _log_as_models(log_format: LogFormat) -> None:
    configure_model(log_format, "api")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
