"""Where callers' texts become prompts: long ones on a thread, so that nobody else waits for them."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Some ten milliseconds of encoding.
LARGE_CHARACTERS = 2**16


async def off_loop(make: Callable[[], T], characters: int) -> T:
    """What `make` makes of so many characters."""
    return await asyncio.to_thread(make) if characters > LARGE_CHARACTERS else make()
