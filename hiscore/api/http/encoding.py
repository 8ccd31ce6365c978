"""Work on callers' texts: long ones are read on a thread, so that nobody else waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hiscore.api.http.errors import bad_request
from hiscore.prompts.chat import PromptError
from hiscore.prompts.token_limits import TooMuchText
from hiscore.tokenization.panics import CannotEncode

T = TypeVar("T")
# Some ten milliseconds of encoding.
LARGE_CHARACTERS = 2**16
# Some tenths of a second. One after the other: they take seconds and hundreds of megabytes, and use all cores.
HUGE_CHARACTERS = 2**20
_one_by_one = ThreadPoolExecutor(1, "huge-prompts")


async def off_loop(make: Callable[[], T], characters: int) -> T:
    """Call `make`, which reads so many characters, on a thread if they are many."""
    if characters <= LARGE_CHARACTERS:
        return make()
    executor = _one_by_one if characters > HUGE_CHARACTERS else None
    return await asyncio.get_running_loop().run_in_executor(executor, make)


async def prompted(make: Callable[[], T], characters: int, what: str, param: str | None = None) -> T:
    """Call `make` like `off_loop`; that it makes no prompt of `what` is an error of the caller's."""
    try:
        return await off_loop(make, characters)
    except CannotEncode as error:
        raise bad_request(f"{what} cannot be encoded: {error}", param) from None
    except (PromptError, TooMuchText) as error:
        raise bad_request(str(error), param) from None
