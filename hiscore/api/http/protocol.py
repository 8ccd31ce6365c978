"""HTTP/1.1 as uvicorn speaks it, with limits on headers, trailers and waiting requests, and without upgrades."""

import asyncio
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 2**16
# Pipelined requests behind the one that is worked on: each takes some kilobytes.
MAX_WAITING = 64
# Seconds in which a caller has to read something of what is left of an answer when its connection closes.
UNREAD_S = 60.0
# Seconds and bytes for which a caller may go on with a request that was answered before its end: a connection that
# is closed at once is reset, and the reset overtakes the answer.
LINGER_S = 5.0
LINGER_BYTES = 2**28
UPGRADE = b"upgrade"


class NoUpgrade(HttpToolsProtocol):
    """HTTP/1.1 in which an offer to upgrade is ignored, as RFC 9110 allows.

    Java's HttpClient, and so LangChain4j and Spring AI, offer HTTP/2 with every request. llhttp takes all that
    follows such a head for the other protocol, and uvicorn drops it: the head is parsed again without it.
    """

    _offered = False

    def data_received(self, data: bytes) -> None:
        try:
            self._unset_keepalive_if_required()
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._offered:
                self._offered = False
                self._start_again(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        self._offered = self.parser.should_upgrade() and any(name == UPGRADE for name, _ in self.headers)
        if not self._offered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offered:
            super().on_message_complete()

    def _start_again(self, rest: bytes) -> None:
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name != UPGRADE:
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join(head) + b"\r\n" + rest)


class PatientTransport:
    """A transport whose close waits until the caller has read what is left, but not without end.

    uvicorn closes transports in many places, and may write to one that is closing, where uvloop's would raise.

    Attributes:
        is_sending: The caller is in the middle of a request: it may read the answer only after that.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._closes = self._ends = self.is_sending = False
        self._discarded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        """Close: at the second call at once, whatever the caller is sending."""
        lingers = self.is_sending and not self.is_closing()
        self._closes = True
        if not lingers:
            self._end()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._end)

    def discard(self, data: bytes) -> None:
        """Read on behind the answer, up to a limit."""
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self._end()

    def _end(self) -> None:
        """Close, and give the caller up once nothing was read for a while."""
        self._transport.close()
        if not self._ends:
            self._ends = True
            self._wait_for_reader(None)

    def _wait_for_reader(self, before: int | None) -> None:
        left = self._transport.get_write_buffer_size()
        if left and left == before:
            self._transport.abort()
        elif left:
            self._loop.call_later(UNREAD_S, self._wait_for_reader, left)


def without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """Let the end of the connection end a stream: uvicorn sends chunks, which HTTP/1.0 does not know."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def send_plain(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


class LimitedProtocol(NoUpgrade):
    """Closes connections whose headers or trailers are too large, or whose headers are not complete in time, and
    those with too many pipelined requests."""

    header_timeout_s = 10.0
    _after_chunk_header = False
    _in_headers = False
    _working: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._patient = PatientTransport(transport, self.loop)
        super().connection_made(self._patient)  # type: ignore[arg-type]
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._expect_headers()

    def eof_received(self) -> None:
        # The loop closes the transport now and says so later; an answer sent in between would fail on it.
        self._caller_has_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        self._caller_has_left()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_headers = self._patient.is_sending = True
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        if self._patient.is_closing():
            self._patient.discard(data)
            return
        # What comes in one piece with the end of the headers, or of a chunk's, may be the body.
        if self._header_bytes > MAX_HEADER_BYTES:
            self.send_400_response("The request's headers are too large.")
            return
        if self._header_timer is not None or self._after_chunk_header:
            self._header_bytes += len(data)
        super().data_received(data)
        # Most requests' headers come in one piece, and need no timer.
        if self._in_headers:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._headers_done()
        if len(self.pipeline) >= MAX_WAITING:
            self._close()
            return
        super().on_headers_complete()
        if self.pipeline:
            # uvicorn would read no further, and not hear of the end either.
            self.flow.resume_reading()

    def on_chunk_header(self) -> None:
        """Count anew: trailers may follow the last chunk, whose length is 0."""
        self._header_bytes, self._after_chunk_header = 0, True

    def on_body(self, body: bytes) -> None:
        self._after_chunk_header = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._after_chunk_header = self._patient.is_sending = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._patient.is_sending = True
        super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._working = cycle
        if cycle.scope["http_version"] != "1.1":
            cycle.keep_alive = cycle.waiting_for_100_continue = False
            app = without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _caller_has_left(self) -> None:
        """Tell the request that is worked on; uvicorn tells the newest, which may still wait behind it."""
        if self._working is not None and not self._working.response_complete:
            self._working.disconnected = True
            self._working.message_event.set()

    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._close)

    def _headers_done(self) -> None:
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close(self) -> None:
        self._header_timer = None
        self._patient.is_sending = False
        if not self.transport.is_closing():
            self.transport.close()
