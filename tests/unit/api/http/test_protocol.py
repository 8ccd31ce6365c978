"""HTTP/1.1 on a socket: slow callers, large headers, callers that leave, too many connections."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from hiscore.api import __main__ as api_process
from hiscore.api.__main__ import uvicorn_config
from hiscore.api.http import endpoint, protocol
from hiscore.api.http.endpoint import WATCH_AFTER_S
from hiscore.api.http.protocol import MAX_HEADER_BYTES, MAX_WAITING, LimitedProtocol
from hiscore.settings import ApiProcessSettings
from tests.client.faulty_server import DEFAULT_STREAM, FaultyServer, until_cancelled
from tests.server.raw_http import post
from tests.support.api_bodies import CASES
from tests.support.timeouts import TIMEOUT_S, wait_until
from tests.unit.api.conftest import MakeClient, MakeSettings
from tests.unit.api.http.test_patient_transport import asked

pytestmark = pytest.mark.slow

JSON = "Content-Type: application/json"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
HEADER_TIMEOUT_S = 1
MAX_BODY = 2**21


@contextmanager
def served(client: TestClient, settings: ApiProcessSettings) -> Iterator[tuple[str, int]]:
    """The address of a client's application, behind the server that it has in production."""
    config = uvicorn_config(settings)
    config.app, config.factory, config.lifespan, config.workers = client.app, False, "off", 1
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def address(
    make_client: MakeClient, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """Whose callers may take as long as they like."""
    monkeypatch.setattr(LimitedProtocol, "header_timeout_s", TIMEOUT_S)
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(api_process, "MAX_CONNECTIONS", 30)
    monkeypatch.setattr(protocol, "LINGER_S", TIMEOUT_S)
    with served(make_client(max_body_bytes=MAX_BODY), make_settings()) as found:
        yield found


@pytest.fixture
def hasty(
    make_client: MakeClient, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, int]]:
    """Whose callers may not."""
    monkeypatch.setattr(LimitedProtocol, "header_timeout_s", HEADER_TIMEOUT_S)
    monkeypatch.setattr(endpoint, "BODY_TIMEOUT_S", 1)
    with served(make_client(), make_settings()) as found:
        yield found


def read_all(connection: socket.socket) -> bytes:
    received = b""
    # A server that closes with something unread resets the connection.
    with suppress(ConnectionResetError):
        while block := connection.recv(65_536):
            received += block
    return received


def ask(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(request)
        return read_all(connection)


def good(path: str, body: object) -> bytes:
    return post(path, json.dumps(body).encode(), JSON)


@pytest.mark.exhaustive
def test_slow_headers_end_the_connection(hasty: tuple[str, int]) -> None:
    for sent in (b"", b"POST", good(*CASES[0]).partition(b"\r\n\r\n")[0]):
        assert ask(hasty, sent) == b""
    # Between two requests a connection may rest.
    with socket.create_connection(hasty, timeout=TIMEOUT_S) as connection:
        request = good(*CASES[0]).replace(b"Connection: close\r\n", b"")
        connection.sendall(request)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        time.sleep(2 * HEADER_TIMEOUT_S)
        connection.sendall(request)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        # But not in the middle of one.
        connection.sendall(request[:20])
        assert read_all(connection) == b""


def test_large_headers_are_refused(address: tuple[str, int]) -> None:
    head = good(*CASES[0]).partition(b"\r\n")
    long = b"X-Long: " + b"a" * 4 * MAX_HEADER_BYTES + b"\r\n"
    many = b"".join(b"X-%d: a\r\n" % number for number in range(20_000))
    for headers, status in ((long[-MAX_HEADER_BYTES // 2 :], b"200"), (long, b"400"), (many, b"400")):
        assert ask(address, head[0] + b"\r\nX:" + headers + head[2])[9:12] == status


def in_chunks(path: str, body: object, trailers: bytes = b"") -> bytes:
    content = json.dumps(body).encode()
    lines = (f"POST {path} HTTP/1.1", JSON, "Connection: close", "Transfer-Encoding: chunked", "", "")
    return "\r\n".join(lines).encode() + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(content), content, trailers)


def test_large_trailers_are_refused(address: tuple[str, int]) -> None:
    long = b"X-Long: " + b"a" * 16 * MAX_HEADER_BYTES + b"\r\n"
    many = b"X-Many: a\r\n" * MAX_HEADER_BYTES
    for trailers in (long, many):
        assert ask(address, in_chunks(*CASES[0], trailers))[9:12] == b"400"
    for trailers in (b"", b"X-Short: a\r\n"):
        assert ask(address, in_chunks(*CASES[0], trailers)).startswith(b"HTTP/1.1 200")
    # The control: a body in chunks may be as large, and each chunk may come by itself.
    path, body = CASES[0]
    assert ask(address, in_chunks(path, {**body, "user": "a" * 16 * MAX_HEADER_BYTES})).startswith(
        b"HTTP/1.1 200"
    )


def test_a_body_beyond_the_limit_gets_an_answer_that_its_sender_can_read(address: tuple[str, int]) -> None:
    path, body = CASES[0]
    # More than the sockets of both sides hold: it is still being sent when it is refused.
    large = {**body, "user": "a" * 8 * MAX_BODY}
    for request in (good(path, large), in_chunks(path, large)):
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            connection.sendall(request)  # no broken pipe
            head, _, told = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        assert f"larger than {MAX_BODY} bytes" in json.loads(told)["error"]["message"]


@pytest.mark.parametrize("header", ["Connection: keep-alive", "Expect: 100-continue"])
def test_before_http_1_1_the_end_of_the_connection_ends_a_stream(
    address: tuple[str, int], header: str
) -> None:
    path, body = next(case for case in CASES if case[0].endswith("completions"))
    for streams in (True, False):
        asked_for = {**body, "stream": streams}
        newer = ask(address, good(path, asked_for))
        older = ask(
            address, post(path, json.dumps(asked_for).encode(), JSON, header).replace(b"1.1", b"1.0", 1)
        )
        head, _, content = older.partition(b"\r\n\r\n")
        assert (b"transfer-encoding" in newer.lower()) == streams  # the control
        assert head.startswith(b"HTTP/1.1 200")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head
        if streams:
            assert content.startswith(b"data: {")
            assert content.endswith(b"data: [DONE]\n\n")
        else:
            assert b"content-length: %d\r" % len(content) in head


@pytest.mark.parametrize("offered", ["h2c", "websocket"])
@pytest.mark.parametrize("pieces", [1, 2, 40])
def test_an_offer_to_upgrade_is_ignored(address: tuple[str, int], offered: str, pieces: int) -> None:
    offer = OFFER.replace(b"h2c", offered.encode())
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        for path, body in CASES[:2]:
            request = good(path, body).replace(b"Connection: close\r\n", offer)
            assert offer in request
            size = -(-len(request) // pieces)
            for start in range(0, len(request), size):
                connection.sendall(request[start : start + size])
                time.sleep(0.001)
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert b"upgrade" not in answer.lower()
    # Without a body, in chunks, one after the other in one piece, and as the last request of a connection.
    plain = b"GET /v1/models HTTP/1.1\r\n" + offer + b"\r\n"
    chunked = in_chunks(*CASES[0]).replace(b"Connection: close\r\n", offer)
    last = chunked.replace(b"Connection: Upgrade", b"Connection: close, Upgrade")
    assert ask(address, plain + chunked + last).count(b"HTTP/1.1 200") == 3


def test_with_an_offer_to_upgrade_slow_callers_are_ended_as_well(hasty: tuple[str, int]) -> None:
    request = good(*CASES[0]).replace(b"Connection: close\r\n", OFFER)
    assert ask(hasty, request.partition(b"\r\n\r\n")[0]) == b""
    assert ask(hasty, request[:-3]).startswith(b"HTTP/1.1 408")


def test_slow_bodies_are_refused_on_every_route(hasty: tuple[str, int]) -> None:
    with ExitStack() as stack:
        waiting = []
        for path, body in CASES:
            connection = stack.enter_context(socket.create_connection(hasty, timeout=TIMEOUT_S))
            connection.sendall(good(path, body)[:-3])
            waiting.append(connection)
        # Nobody else waits for them.
        assert ask(hasty, good(*CASES[0])).startswith(b"HTTP/1.1 200")
        for connection in waiting:
            assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_the_work_of_callers_that_leave_is_cancelled_on_every_route(
    address: tuple[str, int], models: FaultyServer
) -> None:
    for path, body in CASES:
        if path in ("/tokenize", "/detokenize"):
            continue  # they ask no model
        models.faults.append(until_cancelled)
        before = models.cancelled
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            connection.sendall(good(path, body))
            wait_until(lambda: models.running == 1)
        wait_until(lambda: models.running == 0 and models.cancelled == before + 1)  # noqa: B023
        counted = f'hiscore_api_requests_total{{route="{path}",status="499"}}'.encode()
        wait_until(lambda: counted in ask(address, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"))  # noqa: B023
    assert ask(address, good(*CASES[0])).startswith(b"HTTP/1.1 200")


def test_the_work_of_callers_that_leave_is_cancelled_if_they_have_asked_for_more(
    address: tuple[str, int], models: FaultyServer
) -> None:
    request = good(*CASES[0]).replace(b"Connection: close\r\n", b"")
    for at_once, later in ((b"", b""), (request, b""), (3 * request, b""), (b"", request)):
        models.faults.append(until_cancelled)
        before = models.cancelled
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            connection.sendall(request + at_once)
            wait_until(lambda: models.running == 1)
            time.sleep(2 * WATCH_AFTER_S)
            connection.sendall(later)
        wait_until(lambda: models.running == 0 and models.cancelled == before + 1)  # noqa: B023
    # The control: of one that stays, all are answered.
    assert ask(address, 3 * request + good(*CASES[0])).count(b"HTTP/1.1 200") == 4


def test_far_more_requests_than_are_waited_for_end_the_connection(
    address: tuple[str, int], models: FaultyServer
) -> None:
    models.faults.append(until_cancelled)
    request = good(*CASES[0]).replace(b"Connection: close\r\n", b"")
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        # One that is closed before the models hear of it has nothing to cancel.
        wait_until(lambda: models.running == 1)
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(10 * MAX_WAITING * b"GET /health HTTP/1.1\r\n\r\n")
        assert read_all(connection) == b""
    wait_until(lambda: models.running == 0 and models.cancelled == 1)
    # The control: so many may wait.
    assert ask(address, MAX_WAITING * request + good(*CASES[0])).count(b"HTTP/1.1 200") == MAX_WAITING + 1


@pytest.mark.parametrize("choices", [1, 3])
def test_generations_are_cancelled_wherever_their_caller_leaves(
    address: tuple[str, int], models: FaultyServer, choices: int
) -> None:
    asked = [(path, body) for path, body in CASES if path.endswith("completions")]
    for place, streams, (path, body) in product(range(len(DEFAULT_STREAM) + 1), (True, False), asked):
        models.stream = [*DEFAULT_STREAM[:place], until_cancelled, *DEFAULT_STREAM[place:]]
        before = models.cancelled
        with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
            connection.sendall(good(path, {**body, "n": choices, "stream": streams}))
            wait_until(lambda: models.running == choices)
            if streams and place:
                assert connection.recv(1) == b"H"
        wait_until(lambda: models.running == 0)
        assert models.cancelled == before + choices, (path, place, streams)


def test_connections_are_limited(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))
            connection.sendall(good(*CASES[0])[:-3])
        assert ask(address, good(*CASES[0])).startswith(b"HTTP/1.1 503")
    wait_until(lambda: ask(address, good(*CASES[0])).startswith(b"HTTP/1.1 200"))


def test_what_is_no_http_is_refused(address: tuple[str, int]) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"A" * 1_000 + b"\r\n\r\n"):
        assert ask(address, garbage)[9:12] == b"400"
    twice = post("/rerank", b"{}", JSON, "Transfer-Encoding: chunked")
    assert ask(address, twice).startswith(b"HTTP/1.1 4")
    assert ask(address, good(*CASES[0])).startswith(b"HTTP/1.1 200")


class ClosedTransport(asyncio.Transport):
    """As uvloop's is between the end of what comes in and the loss of the connection, but says that it is open."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        raise RuntimeError("the handler is closed")


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_sent_to_a_caller_that_has_just_left(ends: bool, caplog: pytest.LogCaptureFixture) -> None:
    answered = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await answered.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def leave() -> None:
        connection, tasks = asked(application, ClosedTransport())
        if ends:
            connection.eof_received()
        answered.set()
        # The control's exception is logged, and then raised by the attempt to say so.
        await asyncio.gather(*tasks, return_exceptions=True)
        connection.connection_lost(OSError())

    asyncio.run(leave())
    assert ("Exception in ASGI application" in caplog.text) == (not ends)
