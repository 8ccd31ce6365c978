"""HTTP/1.1 as uvicorn speaks it, with limits on a request's headers and trailers, which uvicorn has not."""

import asyncio

from hiscore.api.upgrade import NoUpgrade

MAX_HEADER_BYTES = 2**16


class LimitedProtocol(NoUpgrade):
    """Closes connections whose headers or trailers are too large, or whose headers are not complete in time."""

    header_timeout_s = 10.0
    _after_chunk_header = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._expect_headers()

    def eof_received(self) -> None:
        # The loop closes the transport now and says so later; an answer sent in between would fail on it.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._expect_headers()
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        # What comes in one piece with the end of the headers, or of a chunk's, may be the body.
        if self._header_bytes > MAX_HEADER_BYTES:
            self.send_400_response("The request's headers are too large.")
            return
        if self._header_timer is not None or self._after_chunk_header:
            self._header_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._headers_done()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Of the last chunk, whose length is 0, trailers may follow."""
        self._header_bytes, self._after_chunk_header = 0, True

    def on_body(self, body: bytes) -> None:
        self._after_chunk_header = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._after_chunk_header = False
        super().on_message_complete()

    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._close)

    def _headers_done(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
