"""Who gets how much of a prefill forward where there are long prompts; the rest is in `test_scheduler`."""

from dataclasses import replace

import pytest

from hiscore.decoding.interface.cache_config import SHARED_TOKENS
from hiscore.decoding.scheduling.prefill_shares import share_forward
from tests.support.decode_worker import TINY
from tests.unit.decoding.scheduling.test_scheduler import sequence

LONG = 2 * SHARED_TOKENS
CONFIG = replace(TINY, prefill_token_budget=LONG)


def shares(prompts: list[int], running: int, budget: int = LONG) -> list[int]:
    waiting = [sequence(prompt=length) for length in prompts]
    given = dict(share_forward(waiting, replace(CONFIG, prefill_token_budget=budget), running))
    return [given.get(each, 0) for each in waiting]


@pytest.mark.parametrize(
    ("prompts", "running", "expected"),
    [
        # A forward that delays nobody is as long as it may be.
        ([LONG], 0, [LONG]),
        ([LONG + 100], 0, [LONG]),
        ([LONG] * 3, 2, [LONG, 0, 0]),
        # Running sequences would wait, as many as there are prompts.
        ([LONG], 1, [SHARED_TOKENS]),
        ([LONG] * 3, 3, [SHARED_TOKENS, 0, 0]),
        # Short prompts would.
        ([LONG, 100], 0, [SHARED_TOKENS - 100, 100]),
        ([1_000] * 8, 0, [1_000] * 4 + [96] + [0] * 3),
        ([], 0, []),
    ],
)
def test_a_forward_is_long_if_nobody_waits(prompts: list[int], running: int, expected: list[int]) -> None:
    assert shares(prompts, running) == expected


def test_no_forward_is_longer_than_the_device_has_room_for() -> None:
    assert shares([LONG], 0, budget=SHARED_TOKENS) == [SHARED_TOKENS]
    assert shares([LONG], 0, budget=100) == [100]
