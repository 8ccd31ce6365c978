"""One HTTP connection for measurements: Python's http.client takes 0.15 ms a call itself, as long as the API."""

import socket
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

RECEIVED_BYTES = 2**16


class HttpConnection:
    """Posts JSON, one request after the other.

    Args:
        url: ``http://host:port``.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host = address.netloc
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: Any) -> Any:
        """Send a body and return the answer's.

        Raises:
            RuntimeError: The answer's status is not 200.
            OSError: The connection is closed.
        """
        content = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._socket.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            data = self._socket.recv(RECEIVED_BYTES)
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            parser.feed_data(data)
        text = b"".join(answer.parts)
        if (status := parser.get_status_code()) != 200:
            raise RuntimeError(f"{path}: {status} {text[:500]!r}")
        return msgspec.json.decode(text)

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class _Answer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.complete = True
