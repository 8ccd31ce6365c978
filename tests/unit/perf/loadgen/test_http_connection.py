"""The connection of the load generator, to the HTTP server of Python's library."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from perf.loadgen.http_connection import HttpConnection


class Echo(BaseHTTPRequestHandler):
    """Answers with the path and the body; a path of digits is the status."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"path": self.path, "body": body}).encode()
        status = self.path.strip("/")
        self.send_response(int(status) if status.isdecimal() else 200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = self.path == "/last"

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""


@pytest.fixture
def connection() -> Iterator[HttpConnection]:
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made = HttpConnection(f"http://127.0.0.1:{server.server_port}")
        yield made
        made.close()
        server.shutdown()
        thread.join()


def test_bodies_go_there_and_answers_come_back(connection: HttpConnection) -> None:
    for body in ({"ids": [1, 2]}, {"text": "é" * 100_000}):
        assert connection.post("/route", body) == {"path": "/route", "body": body}


def test_a_failure_is_raised(connection: HttpConnection) -> None:
    with pytest.raises(RuntimeError, match="/429: 429"):
        connection.post("/429", {})
    assert connection.post("/last", 1)["body"] == 1
    with pytest.raises(OSError, match=r"closed|reset|pipe"):
        connection.post("/route", 1)
