"""HTTP/1.1 as uvicorn speaks it, with joined writes, and limits on headers, trailers and requests that wait."""

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hiscore.api.joined_writes import JoinedWrites
from hiscore.api.upgrade import NoUpgrade

MAX_HEADER_BYTES = 2**16
# Pipelined requests behind the one that is worked on: each takes some kilobytes.
MAX_WAITING = 64


class LimitedProtocol(NoUpgrade):
    """Closes connections whose headers or trailers are too large, or whose headers are not complete in time, and
    those with too many pipelined requests."""

    header_timeout_s = 10.0
    _after_chunk_header = False
    _in_headers = False
    _working: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._writes = JoinedWrites(transport, self.loop)
        super().connection_made(self._writes)
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
        self._in_headers = True
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
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

    def on_response_complete(self) -> None:
        self._writes.flush()
        super().on_response_complete()

    def on_chunk_header(self) -> None:
        """Of the last chunk, whose length is 0, trailers may follow."""
        self._header_bytes, self._after_chunk_header = 0, True

    def on_body(self, body: bytes) -> None:
        self._after_chunk_header = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._after_chunk_header = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._working = cycle
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
        if not self.transport.is_closing():
            self.transport.close()
