"""Raw bytes at the HTTP port, right or wrong."""

import json
import re
import socket
from collections.abc import Sequence
from typing import Any

from tests.support.timeouts import TIMEOUT_S


def connect(address: str) -> socket.socket:
    """address: a host and a port, perhaps of a URL."""
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def exchange(address: str, request: bytes, ends: bool = False) -> str:
    """What comes back until the server closes: status line and body; empty if there is nothing but the end.

    ends: the connection is closed for what is sent after the request, so that a server that waits for more sees
    that none will come. Not for a request that is whole: Triton takes its caller for one that has gone, ends a
    stream and now and then (4 of 1,500 calls) sends the head of an answer without its body.

    Raises:
        TimeoutError: the server neither answers nor closes.
    """
    received = b""
    with connect(address) as connection:
        try:
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while block := connection.recv(65_536):
                received += block
        except TimeoutError:
            raise
        except OSError:
            pass  # it has closed with some of the request unread
    head, _, body = received.partition(b"\r\n\r\n")
    return f"{head.splitlines()[0].decode()} {body.decode(errors='replace')}" if head else ""


def post(path: str, body: bytes, *headers: str, length: object = None) -> bytes:
    """A request; length: what Content-Length says instead of the truth."""
    lines = [f"POST {path} HTTP/1.1", "Host: hiscore", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(path: str, chunks: bytes) -> bytes:
    """A request whose body comes in chunks, these."""
    lines = [f"POST {path} HTTP/1.1", "Host: hiscore", "Connection: close", "Transfer-Encoding: chunked"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + chunks


def tensor(name: str, shape: Any, datatype: Any, data: Any = None, **parameters: Any) -> dict[str, Any]:
    made = {"name": name, "shape": shape, "datatype": datatype}
    if data is not None:
        made["data"] = data
    return made | ({"parameters": parameters} if parameters else {})


def infer(inputs: Sequence[Any], **more: Any) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def leak(answer: str) -> str:
    """What an answer reveals of the server's internals, if anything."""
    found = re.search(r"Traceback|File \"|/(?:usr|home|tmp|dev|root|opt|proc|etc)/", answer)
    return found.group() if found else ""
