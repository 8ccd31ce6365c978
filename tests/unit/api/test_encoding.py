"""Long texts become prompts on a thread."""

import asyncio
import threading

from hiscore.api.encoding import LARGE_CHARACTERS, off_loop


def test_only_long_texts_leave_the_loop() -> None:
    async def where(characters: int) -> bool:
        return await off_loop(threading.get_ident, characters) == threading.get_ident()

    assert asyncio.run(where(LARGE_CHARACTERS))
    assert not asyncio.run(where(LARGE_CHARACTERS + 1))
