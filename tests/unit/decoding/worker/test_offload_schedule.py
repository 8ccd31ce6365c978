"""The offload schedule and a worker on simulated queues: correct, and every wait, query and record is needed."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.kv_cache.buffer_pages import ring_pages
from hiscore.decoding.worker.device_queues import Event, Queue
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from tests.support.offload_load import SEQUENCES, Load, Run
from tests.support.queue_mutations import Kind, Mutated
from tests.support.queue_simulator import Simulator

WIDTHS = [3, 1]
SLOW = 50.0

# (compute, offload, restore): how long operations take, drawn from these.
TIMINGS = {
    "offload slow": ((1.0,), (SLOW,), (1.0,)),
    "restore slow": ((1.0,), (1.0,), (SLOW,)),
    "compute slow": ((SLOW,), (1.0,), (1.0,)),
    "compute slow now and then": ((1.0, 1.0, 1.0, SLOW), (1.0,), (1.0,)),
    "offload slow now and then": ((1.0,), (1.0, 1.0, 1.0, SLOW), (1.0,)),
    "mixed": ((1.0, 7.0, SLOW), (1.0, 7.0, SLOW), (1.0, 7.0, SLOW)),
}


class Queues(Mutated, Simulator):
    """Simulated queues with one kind of call left out."""


def queues(timing: str, seed: int = 0) -> Queues:
    draw = random.Random(seed)
    durations = dict(zip(Queue, TIMINGS[timing], strict=True))
    return Queues(lambda queue: draw.choice(durations[queue]))


def run(load: Load, on: Queues, ring: int | None = None) -> Run:
    done = Run(load, on, ring)
    done.run()
    return done


def faults(load: Load, timing: str, drop: Kind | None = None, only: int | None = None) -> list[str]:
    on = queues(timing, load.seed)
    on.drop, on.only = drop, only
    run(load, on)
    return on.faults


@pytest.mark.slow
@given(
    page=st.sampled_from([1, 4, 16]),
    width=st.sampled_from([1, 2, 3, 5, 16, 17, 32]),
    timing=st.sampled_from(sorted(TIMINGS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_read_is_right_and_all_lands(page: int, width: int, timing: str, seed: int) -> None:
    on = queues(timing, seed)
    done = run(Load(page, width, seed), on)
    assert not on.faults
    assert done.schedule.offloaded_tokens == done.written > 0
    assert not done.schedule.lag().any()
    # The load launches a step when the last but one has ended.
    assert done.most_lag <= done.schedule.width + 2


def loads(width: int) -> list[Load]:
    return [Load(page, width, seed) for page in (1, 4) for seed in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_without_any_kind_of_wait_query_or_record_something_breaks(width: int) -> None:
    kinds: set[Kind] = set()
    for load in loads(width):
        on = queues("mixed", load.seed)
        run(load, on)
        kinds |= set(on.calls)
    assert {call for _, call, _ in kinds} >= {"wait", "completed", "record"}
    # A restore waits for forwards, and the admission of its sequence for it.
    assert {("stage", "wait", "restore"), ("seed", "wait", "compute")} <= kinds
    runs = list(itertools.product(loads(width), TIMINGS))
    assert {kind for kind in kinds if not any(faults(*x, kind) for x in runs)} == set()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_single_wait_is_too_many() -> None:
    """Where the other queue is slow, leaving out any single call is noticed.

    In a ring of one token each step waits for the copy of the step before, which other waits then repeat.
    """
    for load in [Load(page, 3, seed, steps=20) for page in (1, 4) for seed in range(2)]:
        for queue, timing in ((Queue.COMPUTE, "offload slow"), (Queue.OFFLOAD, "compute slow")):
            on = queues(timing, load.seed)
            run(load, on)
            for kind, count in on.calls.items():
                if kind[1:] == ("wait", queue.value):
                    assert all(faults(load, timing, kind, only) for only in range(count))


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.exhaustive
def test_a_ring_that_is_a_page_too_small_is_seen(page: int) -> None:
    def wrong(ring: int) -> bool:
        found = []
        for seed in range(4):
            on = queues("offload slow")
            run(Load(page, page + 2, seed), on, ring)
            found += on.faults
        return bool(found)

    right = ring_pages(page + 2, page)
    assert wrong(right - 1)
    assert not wrong(right)
    assert not wrong(right + 1)


@given(width=st.integers(1, 70), page=st.sampled_from([1, 2, 4, 16, 32]))
def test_the_ring_has_just_as_many_pages_as_the_newest_tokens_may_touch(width: int, page: int) -> None:
    touched = [len({x // page for x in range(p - width + 1, p + 1)}) for p in range(width, width + page)]
    assert ring_pages(width, page) == max(touched)


def at(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


PROMPT, STEP = Event(7), Event(8)


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
        schedule.step_copied(Event(position), *batch)
    assert waits == [None] * width + [Event(position) for position in range(1, 9 - width)]
    # A sequence without copies has nothing to wait for.
    schedule.restored(2, 1)
    assert schedule.step_waits_for(at(2), at(1)) is None


def test_a_step_waits_for_the_last_copy_that_any_of_its_rows_needs() -> None:
    for order in ((0, 1), (1, 0)):
        schedule = OffloadSchedule(1, 2, 1)
        for seq_index in order:
            schedule.restored(seq_index, 3)
            schedule.step_launched(at(seq_index), at(3))
            schedule.step_copied(Event(seq_index), at(seq_index), at(3))
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


def test_events_are_few_and_used_again() -> None:
    """At most the copies in flight, one event each: the ring's and the prompts', and one for the forward."""
    on = queues("offload slow")
    done = run(Load(4, 5, 0, steps=200), on)
    assert on.calls["step", "record", "offload"] > 50
    assert on.events <= done.schedule.width + 2 + 2 * SEQUENCES


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
