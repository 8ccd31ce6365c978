"""Requests that offer an upgrade, to HTTP/2 or to WebSocket: answered in HTTP/1.1, as if they did not."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UPGRADE = b"upgrade"


class NoUpgrade(HttpToolsProtocol):
    """HTTP/1.1 in which an offer to upgrade is ignored, as RFC 9110 allows.

    Java's HttpClient and ``curl --http2`` make one with every request. llhttp takes all that follows such a head
    for the other protocol, so the head is parsed again without the offer.
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
