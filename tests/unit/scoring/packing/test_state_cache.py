"""States of cached queries: what is found, what makes room, and what a batch keeps from others."""

import numpy as np

from hiscore.recurrence.metadata import CHUNK, FIRST_CACHED_SLOT
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.requests.query_key import PAGE, QueryKey

KEYS = [QueryKey.of(np.full(4 * CHUNK, number, np.int32)) for number in range(3)]


def cache_of(slots: int) -> StateCache:
    return StateCache(FIRST_CACHED_SLOT + slots)


def test_a_batch_finds_what_those_before_it_left() -> None:
    states = cache_of(2)
    slot = states.keep(KEYS[0], 2 * CHUNK)
    assert states.find(KEYS[0], 4 * CHUNK) == 0
    states.end_batch()
    assert [states.find(KEYS[0], most) for most in (4 * CHUNK, 2 * CHUNK, 2 * CHUNK - 1)] == [
        2 * CHUNK,
        2 * CHUNK,
        0,
    ]
    one_page_less = QueryKey.of(np.repeat([0, 1], [2 * CHUNK - PAGE, PAGE]).astype(np.int32))
    assert [states.find(key, 2 * CHUNK) for key in (KEYS[1], one_page_less)] == [0, 0]
    assert states.use(KEYS[0], 2 * CHUNK) == slot
    assert states.keep(KEYS[0], 2 * CHUNK) is None


def test_the_least_recently_used_makes_room_unless_the_batch_reads_it() -> None:
    states = cache_of(2)
    for key in KEYS[:2]:
        states.keep(key, CHUNK)
    states.end_batch()
    first = states.use(KEYS[0], CHUNK)
    assert states.keep(KEYS[2], CHUNK) not in (None, first)
    # What is left is in use or new.
    assert states.keep(KEYS[2], 2 * CHUNK) is None
    states.end_batch()
    assert [states.find(key, CHUNK) for key in KEYS] == [CHUNK, 0, CHUNK]


def test_after_a_failure_nothing_is_found_and_every_slot_is_free() -> None:
    states = cache_of(2)
    states.keep(KEYS[0], CHUNK)
    states.end_batch()
    states.keep(KEYS[1], CHUNK)
    states.clear()
    assert [states.find(key, CHUNK) for key in KEYS] == [0, 0, 0]
    assert len({states.keep(key, CHUNK) for key in KEYS[:2]}) == 2
