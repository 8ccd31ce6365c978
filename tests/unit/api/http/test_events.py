"""Answers in events: their wire, their failures, callers that leave and readers that do not read."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from hiscore.api.http import endpoint as endpoint_module
from hiscore.api.http.auth import Keys
from hiscore.api.http.endpoint import Endpoint, Variant
from hiscore.api.http.errors import ApiError
from hiscore.api.http.events import EventStream, started
from hiscore.api.http.metrics import Metrics
from hiscore.settings import ApiBounds
from tests.support.timeouts import TIMEOUT_S

Make = Callable[[], AsyncGenerator[Any, None]]


class Call:
    """One call of a route that answers with events; leaves_after: so many messages, of which one is no event."""

    def __init__(self, make: Make, leaves_after: int | None = None, reads: bool = True) -> None:
        self.sent: list[Any] = []
        self.closed = False
        self.metrics = Metrics()
        self._make, self._leaves_after, self._reads = make, leaves_after, reads
        asyncio.run(self._run())

    @property
    def body(self) -> bytes:
        return b"".join(each["body"] for each in self.sent[1:])

    @property
    def status(self) -> str:
        page = self.metrics.page().decode()
        return next(
            each for each in ("200", "400", "429", "499", "500", "504") if f'status="{each}"}} 1.0' in page
        )

    async def _run(self) -> None:
        async def events() -> AsyncGenerator[Any, None]:
            try:
                async for each in self._make():
                    yield each
            finally:
                self.closed = True

        async def handle(body: Any, request_id: str) -> EventStream:
            return await started(events())

        settings = ApiBounds(queue_timeout_s=1, compute_timeout_s=TIMEOUT_S if self._reads else 1)
        route = Endpoint("/route", [Variant(dict, dict, handle)], settings, Keys(None), self.metrics)
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            while self._leaves_after is None or len(self.sent) < self._leaves_after:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)
            if not self._reads and len(self.sent) > 1:
                await asyncio.sleep(60)

        headers = [(b"content-type", b"application/json"), (b"x-request-id", b"mine")]
        await route({"type": "http", "headers": headers}, receive, send)


async def three() -> AsyncGenerator[Any, None]:
    for number in range(3):
        yield {"n": number}


async def endless() -> AsyncGenerator[Any, None]:
    while True:
        yield {"n": 1}
        await asyncio.sleep(0.01)


def test_events_and_their_end() -> None:
    call = Call(three)
    start = call.sent[0]
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert start["status"] == 200
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-request-id"] == "mine"
    assert call.body == b'data: {"n":0}\n\ndata: {"n":1}\n\ndata: {"n":2}\n\ndata: [DONE]\n\n'
    assert [each.get("more_body", False) for each in call.sent[1:]] == [True, True, True, False]
    assert (call.status, call.closed) == ("200", True)


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [(ApiError(429, "full"), "429", b"full"), (RuntimeError("secret"), "500", b"inside the server")],
)
def test_what_fails_before_the_first_event_has_its_status_and_later_is_an_event(
    error: Exception, status: str, says: bytes
) -> None:
    async def fails() -> AsyncGenerator[Any, None]:
        raise error
        yield

    async def fails_later() -> AsyncGenerator[Any, None]:
        yield {"n": 0}
        raise error

    first, later = Call(fails), Call(fails_later)
    assert (first.sent[0]["status"], later.sent[0]["status"]) == (int(status), 200)
    assert says in first.body
    assert later.body.startswith(b'data: {"n":0}\n\ndata: {"error":{')
    assert says in later.body
    assert later.body.endswith(b"}}\n\ndata: [DONE]\n\n")
    assert b"secret" not in first.body + later.body
    assert first.status == later.status == status
    assert first.closed
    assert later.closed


def test_a_caller_that_leaves_closes_the_stream() -> None:
    call = Call(endless, leaves_after=4)
    assert call.closed
    assert call.status == "499"
    assert b"[DONE]" not in call.body


@pytest.mark.slow
def test_a_reader_that_never_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "SLOWEST_READER_S", 0)
    call = Call(three, reads=False)
    assert call.closed
    assert len(call.sent) == 2
