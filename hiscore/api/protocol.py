"""HTTP/1.1 as uvicorn speaks it, with limits on a request's headers, which uvicorn has not."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 2**16


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too large, or not complete in time."""

    header_timeout_s = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_done()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._expect_headers()
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        # What comes in one piece with the end of the headers may be the body.
        if self._header_bytes > MAX_HEADER_BYTES:
            self.send_400_response("The request's headers are too large.")
            return
        if self._header_timer is not None:
            self._header_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._headers_done()
        super().on_headers_complete()

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
