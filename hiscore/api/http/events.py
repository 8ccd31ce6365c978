"""Answers that are streamed as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # A proxy must not gather events.
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class EventStream:
    """An answer in events; `others` follow the first, and may raise `ApiError`."""

    first: Any
    others: AsyncGenerator[Any, None]


async def started(events: AsyncGenerator[Any, None]) -> EventStream:
    """Wait for the first event, so that a request that cannot be served gets the status of its error.

    Raises:
        ApiError: There is an error instead.
    """
    return EventStream(await anext(events), events)


async def encoded(stream: EventStream) -> AsyncGenerator[bytes, None]:
    """Yield the events as they go over the wire, without the last."""
    async with aclosing(stream.others) as others:
        yield event(stream.first)
        async for each in others:
            yield event(each)


def event(data: Any) -> bytes:
    """Write one event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
