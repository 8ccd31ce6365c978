"""Joins what is written to a connection: each write is a system call, and wakes the caller for half an answer."""

import asyncio
from typing import Any

# Seconds in which a caller has to read something of what is left of an answer when its connection closes.
UNREAD_S = 60.0


class JoinedWrites(asyncio.Transport):
    """What uvicorn uses of a transport; what is written stays until `flush`, or until the loop's next turn.

    Args:
        transport: Where it goes.
        loop: The transport's.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._closes = False

    def write(self, data: Any) -> None:
        """Keep it for the next flush."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Write what has been kept; nothing once the transport is closing."""
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Write what has been kept, then close once it has been read, or once nobody reads."""
        self.flush()
        self._transport.close()
        if not self._closes:
            self._closes = True
            self._wait_for_reader(None)

    def _wait_for_reader(self, before: int | None) -> None:
        """Give up on one that has read nothing since so many bytes were left: by itself this would never end."""
        left = self._transport.get_write_buffer_size()
        if left and left == before:
            self._transport.abort()
        elif left:
            self._loop.call_later(UNREAD_S, self._wait_for_reader, left)

    def is_closing(self) -> bool:
        """As the transport's."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """As the transport's."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the transport's."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport's."""
        return self._transport.get_extra_info(name, default)
