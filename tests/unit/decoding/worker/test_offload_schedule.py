"""The offload schedule by hand: what waits for which copy. `LateCopies` tries it with whole models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.kv_cache.buffer_pages import ring_pages
from hiscore.decoding.worker.offload_schedule import Event, OffloadSchedule


@given(width=st.integers(1, 70), page=st.sampled_from([1, 2, 4, 16, 32]))
def test_the_ring_has_just_as_many_pages_as_the_newest_tokens_may_touch(width: int, page: int) -> None:
    touched = [len({x // page for x in range(p - width + 1, p + 1)}) for p in range(width, width + page)]
    assert ring_pages(width, page) == max(touched)


def at(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PROMPT, STEP = 7, 8


@pytest.mark.parametrize(("length", "waits"), [(3, None), (4, PROMPT)])
def test_a_prompt_is_waited_for_only_by_steps_that_may_read_it(length: int, waits: Event | None) -> None:
    """The first step of a prompt as long as the ring, and of a shorter one."""
    schedule = OffloadSchedule(4, 1, 1)
    schedule.prompt_copied(PROMPT, 0, 0, length, at(0))
    assert schedule.step_waits_for(at(0), at(length)) == waits


def test_a_copy_is_waited_for_once_and_not_after_it_has_completed() -> None:
    schedule = OffloadSchedule(1, 2, 3)
    schedule.prompt_copied(PROMPT, 0, 0, 16, at(1))
    assert schedule.oldest_copy == PROMPT
    assert schedule.staging_waits_for(at(0, 2)) is None
    assert schedule.staging_waits_for(at(2, 1)) == PROMPT
    assert schedule.staging_waits_for(at(1)) is None
    schedule.step_launched(at(0), at(16))
    schedule.step_copied(STEP, at(0), at(16))
    assert schedule.oldest_copy == PROMPT
    schedule.copy_completed()
    assert schedule.oldest_copy == STEP
    schedule.copy_completed()
    assert schedule.oldest_copy is None
    assert schedule.step_waits_for(at(0), at(17)) is None


def test_all_copies_are_those_in_flight_whatever_has_completed() -> None:
    schedule = OffloadSchedule(4, 1, 2)
    schedule.prompt_copied(PROMPT, 0, 0, 3, at(0))
    schedule.copy_completed()
    assert schedule.all_copies() is None
    schedule.prompt_copied(STEP, 0, 3, 5, at(1))
    assert schedule.all_copies() == STEP


@pytest.mark.parametrize("width", [1, 3])
def test_a_step_waits_for_the_copy_a_ring_before_it(width: int) -> None:
    schedule = OffloadSchedule(width, 3, 1)
    for seq_index in (0, 1):
        schedule.restored(seq_index, 1)
    waits = []
    for position in range(1, 9):
        batch = at(0, 1), at(position, position)
        waits.append(schedule.step_waits_for(*batch))
        schedule.step_launched(*batch)
        schedule.step_copied(position, *batch)
    assert waits == [None] * width + [*range(1, 9 - width)]
    # A sequence without copies has nothing to wait for.
    schedule.restored(2, 1)
    assert schedule.step_waits_for(at(2), at(1)) is None


def test_a_step_waits_for_the_last_copy_that_any_of_its_rows_needs() -> None:
    for order in ((0, 1), (1, 0)):
        schedule = OffloadSchedule(1, 2, 1)
        for seq_index in order:
            schedule.restored(seq_index, 3)
            schedule.step_launched(at(seq_index), at(3))
            schedule.step_copied(seq_index, at(seq_index), at(3))
        assert schedule.step_waits_for(at(0, 1), at(4, 4)) == order[1]


def test_what_was_not_launched_did_not_happen() -> None:
    """A forward that fails leaves its positions to the next attempt; a copy that fails loses its tokens."""
    schedule = OffloadSchedule(4, 2, 1)
    schedule.restored(0, 5)
    schedule.step_waits_for(at(0), at(5))
    schedule.step_waits_for(at(0), at(5))  # the forward failed
    assert schedule.lag().tolist() == [0, 0]
    schedule.step_launched(at(0), at(5))  # the copy failed
    assert schedule.lag().tolist() == [1, 0]
    assert schedule.drained(0)
    schedule.release(0)
    assert schedule.lag().tolist() == [0, 0]


def test_what_does_not_continue_a_sequence_or_frees_too_early_is_refused() -> None:
    schedule = OffloadSchedule(4, 2, 1)
    schedule.prompt_copied(PROMPT, 1, 0, 3, at(0))
    schedule.copy_completed()
    schedule.prompt_copied(PROMPT, 1, 3, 5, at(0))
    assert schedule.lag().tolist() == [0, 2]
    for position in (4, 6):
        with pytest.raises(ValueError, match="next position"):
            schedule.step_waits_for(at(1), at(position))
    assert schedule.drained(0)
    with pytest.raises(RuntimeError, match="sequence 1"):
        schedule.release(1)
    schedule.copy_completed()
    schedule.release(1)
    assert schedule.lag().tolist() == [0, 0]
    assert schedule.offloaded_tokens == 5
    with pytest.raises(ValueError, match="1 token"):
        OffloadSchedule(0, 1, 1)
