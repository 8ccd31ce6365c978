"""Writes that are joined, and answers that go out in one piece."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hiscore.api.http import protocol
from hiscore.api.http.protocol import JoinedWrites, LimitedProtocol


class Recorded(asyncio.Transport):
    """Keeps what is written, and refuses to write once it is closing, as uvloop's does."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closing = self.aborted = self.half_closed = False
        self.unread = 0

    def write(self, data: Any) -> None:
        assert not self.closing
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing


def pieces(use: Callable[[JoinedWrites, Recorded], Any]) -> list[bytes]:
    """What has been written a turn after some use."""

    async def run() -> list[bytes]:
        transport = Recorded()
        use(JoinedWrites(transport, asyncio.get_running_loop()), transport)
        await asyncio.sleep(0)
        return transport.pieces

    return asyncio.run(run())


def test_what_was_written_before_the_end_is_sent_and_nothing_afterwards() -> None:
    def ends(joined: JoinedWrites, transport: Recorded) -> None:
        joined.write(b"a")
        joined.close()
        assert joined.is_closing()
        joined.write(b"b")

    def is_ended(joined: JoinedWrites, transport: Recorded) -> None:
        joined.write(b"a")
        transport.close()

    assert pieces(ends) == [b"a"]
    assert pieces(is_ended) == []


class Timers(asyncio.BaseEventLoop):
    """A loop whose time a test lets go by."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        self.waiting.append(partial(callback, *args))


@pytest.mark.parametrize(
    ("left", "ends"), [([100, 100], True), ([100, 60, 60], True), ([100, 60, 20, 0], False), ([0], False)]
)
def test_a_connection_that_closes_is_given_up_once_nobody_reads(left: list[int], ends: bool) -> None:
    transport, loop = Recorded(), Timers()
    joined = JoinedWrites(transport, loop)
    transport.unread = left[0]
    joined.close()
    joined.close()
    for unread in left[1:]:
        assert not transport.aborted
        assert len(loop.waiting) == 1
        transport.unread = unread
        loop.waiting.pop()()
    assert transport.aborted == ends
    assert not loop.waiting
    loop.close()


@pytest.mark.parametrize("ends", ["time", "bytes", "asked twice"])
def test_a_caller_that_is_sending_may_read_the_answer_for_a_while(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_BYTES", 10)
    transport, loop = Recorded(), Timers()
    joined = JoinedWrites(transport, loop)
    joined.is_sending = True
    joined.write(b"a")
    joined.close()
    assert joined.is_closing()
    joined.discard(bytes(10))
    joined.write(b"b")
    joined.flush()
    assert (transport.pieces, transport.half_closed, transport.closing) == ([b"a"], True, False)
    if ends == "time":
        (end,) = loop.waiting
        end()
    elif ends == "bytes":
        joined.discard(b"a")
    else:
        joined.close()
    assert transport.closing
    loop.close()


def asked(application: Any, transport: asyncio.Transport) -> tuple[LimitedProtocol, set[asyncio.Task[None]]]:
    """A connection on which a request has come, and the tasks that answer it."""
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    connection = LimitedProtocol(config, state, {})
    connection.connection_made(transport)
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    return connection, state.tasks


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_is_one_piece_and_each_part_of_a_stream_is_one(streams: bool) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = [] if streams else [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in (b"a", b"b") if streams else ():
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": b"" if streams else b"ab"})
        if not streams:
            assert len(transport.pieces) == 1, "it does not wait for the end of the turn"

    transport = Recorded()

    async def run() -> None:
        connection, tasks = asked(application, transport)
        await asyncio.gather(*tasks)
        connection.connection_lost(None)

    asyncio.run(run())
    ends = [each[-10:] for each in transport.pieces]
    if streams:
        assert [b"a\r\n" in ends[0], b"b\r\n" in ends[1], ends[2]] == [True, True, b"0\r\n\r\n"]
    else:
        assert ends == [b"length: 2\r\n\r\nab"[-10:]]
