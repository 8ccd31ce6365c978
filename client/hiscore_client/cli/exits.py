"""Failures of a command: what it prints, with a hint at a wrong address, and its exit code."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from hiscore_client.errors import (
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    ServerUnreachable,
)

CODES: dict[type[HiscoreError], int] = {
    InvalidRequest: 2,
    ServerUnreachable: 3,
    Overloaded: 4,
    DeadlineExceeded: 5,
}
HINT_SECONDS = 2.0
DEFAULT_PORT = 8001


def exit_code(error: HiscoreError) -> int:
    """Return the exit code of a failure."""
    return CODES.get(type(error), 1)


@contextmanager
def exit_on_failure(url: str = "") -> Iterator[None]:
    """Print a failure on stderr and exit with its code; if nothing answers at the url, guess what is wrong."""
    try:
        yield
    except HiscoreError as error:
        typer.echo(f"hiscore: {error}", err=True)
        if isinstance(error, ServerUnreachable) and (hint := port_hint(url)):
            typer.echo(f"hiscore: {hint}", err=True)
        raise typer.Exit(exit_code(error)) from None


def port_hint(url: str) -> str:
    """A guess at the right address, or an empty string; asks the address itself, and the default port.

    Args:
        url: ``host:port`` that does not answer.
    """
    host, separator, port = url.rpartition(":")
    if not separator or not port.isdigit() or "/" in host:
        return ""
    host = host.strip("[]")
    default = f"{host}:{DEFAULT_PORT}"
    if _speaks_http(host, int(port)):
        named = f", probably {default}" if int(port) != DEFAULT_PORT and _listens(host, DEFAULT_PORT) else ""
        return f"port {port} speaks HTTP: give the gRPC port{named}"
    if int(port) != DEFAULT_PORT and _listens(host, DEFAULT_PORT):
        return f"something listens on {default}, the default: is that the one?"
    return ""


def _speaks_http(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=HINT_SECONDS)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), HINT_SECONDS):
            return True
    except OSError:
        return False
