"""Hints at what is wrong with an address at which no gRPC answers."""

import http.client
import socket

SECONDS = 2.0
DEFAULT_PORT = 8001


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
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status > 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), SECONDS):
            return True
    except OSError:
        return False
