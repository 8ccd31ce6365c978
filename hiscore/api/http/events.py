"""Answers that are streamed as server-sent events."""

from collections.abc import AsyncGenerator
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
    """Wait for the first event, so that an `ApiError` in its place gives the answer its status."""
    return EventStream(await anext(events), events)


def event(data: Any) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
