"""Long texts become prompts on a thread, and very long ones one after the other."""

import asyncio
import threading
from functools import partial

from hiscore.api.http.encoding import HUGE_CHARACTERS, LARGE_CHARACTERS, off_loop
from tests.support.timeouts import TIMEOUT_S


def test_only_long_texts_leave_the_loop() -> None:
    async def where(characters: int) -> bool:
        return await off_loop(threading.get_ident, characters) == threading.get_ident()

    assert asyncio.run(where(LARGE_CHARACTERS))
    assert not asyncio.run(where(LARGE_CHARACTERS + 1))


def test_huge_texts_wait_for_each_other_and_nobody_waits_for_them() -> None:
    async def all_of() -> None:
        release = threading.Event()
        running: list[int] = []

        def hold(index: int) -> bool:
            running.append(index)
            return release.wait(TIMEOUT_S)

        huge = [asyncio.ensure_future(off_loop(partial(hold, i), HUGE_CHARACTERS + 1)) for i in range(64)]
        for characters in (1, LARGE_CHARACTERS + 1, HUGE_CHARACTERS):
            assert await asyncio.wait_for(off_loop(lambda: "other", characters), TIMEOUT_S) == "other"
        assert len(running) <= 1
        release.set()
        assert all(await asyncio.gather(*huge))
        assert running == list(range(64))

    asyncio.run(all_of())
