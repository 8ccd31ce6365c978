"""A connection that closes: what is left of an answer may be read for a while."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hiscore.api.http import protocol
from hiscore.api.http.protocol import LimitedProtocol, PatientTransport


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
    patient = PatientTransport(transport, loop)
    transport.unread = left[0]
    patient.close()
    patient.close()
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
    patient = PatientTransport(transport, loop)
    patient.is_sending = True
    patient.write(b"a")
    patient.close()
    assert patient.is_closing()
    patient.discard(bytes(10))
    patient.write(b"b")
    assert (transport.pieces, transport.half_closed, transport.closing) == ([b"a"], True, False)
    if ends == "time":
        (end,) = loop.waiting
        end()
    elif ends == "bytes":
        patient.discard(b"a")
    else:
        patient.close()
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
