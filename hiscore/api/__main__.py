"""The API's process: ``python -m hiscore.api``, started by the launcher with its settings in the environment."""

import logging
import os
import ssl
import sys
import tempfile

import uvicorn
from pydantic import ValidationError
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from hiscore.api.app import create_app
from hiscore.logs import LogFormat, configure
from hiscore.settings import ApiProcessSettings

MAX_CONNECTIONS = 1_024
"""Connections of a process, each of which may hold a body; further ones are answered with 503."""


def main() -> int:
    """Serve until a SIGTERM; requests that run then are finished first. With ``--check`` nothing is served."""
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


def uvicorn_config(settings: ApiProcessSettings) -> uvicorn.Config:
    """Make the settings by which uvicorn runs the application."""
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
    configure(log_format, "hiscore %(levelname)s %(name)s: %(message)s", model="api")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
