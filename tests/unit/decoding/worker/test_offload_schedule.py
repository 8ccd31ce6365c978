"""The backup's schedule on simulated streams: it holds, and each of its waits and records is needed."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hiscore.decoding.worker.device_queues import ImmediateStreams, Lane, Work
from hiscore.decoding.worker.offload_schedule import BackupSchedule, ring_pages
from hiscore.settings import BackupProtocol
from tests.support.backup_load import SLOTS, Load, Run
from tests.support.stream_mutations import Kind, Mutated
from tests.support.stream_simulator import Simulator
from tests.support.tensor_memory import TensorMemory

PROTOCOLS: list[BackupProtocol] = ["ring", "deferred", "blocking"]
SLOW = 50.0

# (forward, backup): how long operations take, drawn from these.
TIMINGS = {
    "backup slow": ((1.0,), (SLOW,)),
    "forward slow": ((SLOW,), (1.0,)),
    "forward slow now and then": ((1.0, 1.0, 1.0, SLOW), (1.0,)),
    "backup slow now and then": ((1.0,), (1.0, 1.0, 1.0, SLOW)),
    "mixed": ((1.0, 7.0, SLOW), (1.0, 7.0, SLOW)),
}


class Streams(Mutated, Simulator):
    """Simulated streams, one kind of call left out."""


def streams(timing: str, seed: int = 0) -> Streams:
    draw = random.Random(seed)
    forward, backup = TIMINGS[timing]
    return Streams(lambda lane: draw.choice(forward if lane is Lane.FORWARD else backup))


def run(load: Load, on: Streams, ring: int | None = None) -> Run:
    schedule = BackupSchedule(on, load.protocol, load.width, SLOTS, 2 * load.pages)
    done = Run(load, on, schedule, ring)
    done.run()
    return done


def faults(load: Load, timing: str, drop: Kind | None = None, only: int | None = None) -> list[str]:
    on = streams(timing, load.seed)
    on.drop, on.only = drop, only
    run(load, on)
    return on.faults


@given(
    protocol=st.sampled_from(PROTOCOLS),
    page=st.sampled_from([1, 4, 16]),
    width=st.sampled_from([1, 2, 3, 5, 16, 17, 32]),
    timing=st.sampled_from(sorted(TIMINGS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_read_is_right_and_all_lands(
    protocol: BackupProtocol, page: int, width: int, timing: str, seed: int
) -> None:
    on = streams(timing, seed)
    done = run(Load(protocol, page, width, seed), on)
    assert not on.faults
    assert done.schedule.backed_up == done.written > 0
    assert not done.schedule.lag().any()
    if protocol != "blocking":
        # The load launches a step when the last but one has ended.
        assert done.most_lag <= done.schedule.width + 2
        assert not any(call == "block" for _, call, _ in on.calls)


def loads(protocol: BackupProtocol) -> list[Load]:
    return [Load(protocol, page, 3, seed) for page in (1, 4) for seed in range(4)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_any_kind_of_wait_query_or_record_something_breaks(protocol: BackupProtocol) -> None:
    kinds: set[Kind] = set()
    for load in loads(protocol):
        on = streams("mixed", load.seed)
        run(load, on)
        kinds |= set(on.calls)
    assert {call for _, call, _ in kinds} >= {"wait", "happened", "record"}
    assert ("step", "block", "") in kinds or protocol != "blocking"
    runs = list(itertools.product(loads(protocol), TIMINGS))
    assert {kind for kind in kinds if not any(faults(*x, kind) for x in runs)} == set()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_single_wait_is_too_many(protocol: BackupProtocol) -> None:
    """Where the other lane is slow, leaving out one call alone is seen, whichever it is."""
    for load in [Load(protocol, page, 3, seed, steps=20) for page in (1, 4) for seed in range(2)]:
        for lane, timing in ((Lane.FORWARD, "backup slow"), (Lane.BACKUP, "forward slow")):
            on = streams(timing, load.seed)
            run(load, on)
            for kind, count in on.calls.items():
                if kind[1:] == ("wait", lane.value):
                    assert all(faults(load, timing, kind, only) for only in range(count))


@pytest.mark.parametrize("page", [1, 4])
def test_a_ring_that_is_a_page_too_small_is_seen(page: int) -> None:
    def wrong(ring: int) -> bool:
        on = streams("backup slow")
        run(Load("ring", page, page + 2, 0), on, ring)
        return bool(on.faults)

    right = ring_pages(page + 2, page)
    assert wrong(right - 1)
    assert not wrong(right)
    assert not wrong(right + 1)


@given(width=st.integers(1, 70), page=st.sampled_from([1, 2, 4, 16, 32]))
def test_the_ring_has_just_as_many_pages_as_the_newest_tokens_may_touch(width: int, page: int) -> None:
    touched = [len({x // page for x in range(p - width + 1, p + 1)}) for p in range(width, width + page)]
    assert ring_pages(width, page) == max(touched)


def two_steps(protocol: BackupProtocol) -> tuple[Streams, list[float]]:
    """Two steps of one stream, forwards of 1, copies of `SLOW`; when the host came back from each."""
    on, back = streams("backup slow"), []
    schedule = BackupSchedule(on, protocol, 4, 1, 1)
    schedule.restore(0, 1, np.empty(0, np.int32), lambda: None)
    for p in (1, 2):

        def forward(p: int = p) -> None:
            on.fill([("device", p)], [p])

        def backup(p: int = p) -> None:
            on.copy([(("device", p), ("host", p))])

        schedule.step(np.zeros(1, np.int32), np.array([p], np.int32), forward, backup)
        back.append(on.now)
    while not schedule.drained(0):
        on.pause()
    return on, back


def test_the_ring_overlaps_and_the_others_do_not() -> None:
    on, back = two_steps("ring")
    first, copy, second, _ = on.trace
    assert first.ended == second.started < copy.ended
    assert back == [0, 0]

    on, back = two_steps("deferred")
    first, copy, second, _ = on.trace
    assert first.ended < copy.ended == second.started
    assert back == [0, 0]

    on, back = two_steps("blocking")
    first, copy, second, _ = on.trace
    assert copy.lane is Lane.FORWARD
    assert first.ended == copy.started < copy.ended == second.started
    assert back == [0, first.ended]


def test_a_prompt_is_waited_for_only_by_steps_that_may_read_it_from_the_host() -> None:
    """The first step of a prompt as long as the ring, and of a shorter one."""
    waits = []
    for length in (4, 3):
        on = streams("backup slow")
        schedule = BackupSchedule(on, "ring", 4, 1, 1)
        on.fill([("device", 9)], [9])
        schedule.back_up_prompt(
            0, 0, length, np.zeros(1, np.int32), lambda on=on: on.copy([(("device", 9), ("host", 9))])
        )
        on.during = "step"
        schedule.step(np.zeros(1, np.int32), np.array([length], np.int32), lambda: None, lambda: None)
        waits.append(on.calls["step", "wait", "forward"])
    assert waits == [1, 0]


def test_events_are_few_and_used_again() -> None:
    """At most the copies under way, one event each: the ring's and the prompts', and one for the forward."""
    on = streams("backup slow")
    done = run(Load("ring", 4, 5, 0, steps=200), on)
    assert on.calls["step", "record", "backup"] > 50
    assert on.events <= done.schedule.width + 2 + 2 * SLOTS


def test_what_does_not_continue_a_stream_or_frees_too_early_is_refused() -> None:
    on = streams("backup slow")
    schedule = BackupSchedule(on, "ring", 4, 2, 1)
    schedule.back_up_prompt(1, 0, 5, np.zeros(1, np.int32), lambda: on.fill([("host", 0)], [0]))
    assert schedule.lag().tolist() == [0, 5]
    with pytest.raises(ValueError, match="next position"):
        schedule.step(np.ones(1, np.int32), np.array([6], np.int32), lambda: None, lambda: None)
    assert schedule.drained(0)
    with pytest.raises(RuntimeError, match="sequence 1"):
        schedule.release(1)
    on.pause()
    schedule.release(1)
    assert schedule.lag().tolist() == [0, 0]
    assert schedule.backed_up == 5
    with pytest.raises(ValueError, match="1 token"):
        BackupSchedule(on, "ring", 0, 1, 1)


def test_a_prompts_parts_are_copied_beside_the_forwards_after_them() -> None:
    """Copies of 50 beside forwards of 1: nothing waits for a copy but a step, and who gets its staging."""
    on = streams("backup slow")
    schedule = BackupSchedule(on, "ring", 4, 2, 4)
    for part in range(3):
        cell = ("device", part)
        schedule.stage(np.array([part], np.int32), lambda cell=cell: on.fill([cell], [1]))
        schedule.back_up_prompt(
            0, 4 * part, 4 * part + 4, np.array([part], np.int32),
            lambda part=part: on.copy([(("device", part), ("host", part))]),
        )  # fmt: skip
    schedule.stage(np.array([1], np.int32), lambda: on.fill([("device", 9)], [1]))
    while not schedule.drained(0):
        on.pause()
    forwards = [each for each in on.trace if each.lane is Lane.FORWARD]
    copies = [each for each in on.trace if each.lane is Lane.BACKUP]
    assert [each.started for each in forwards[:3]] == [0, 1, 2]
    assert [each.started for each in copies] == [1, 1 + SLOW, 1 + 2 * SLOW]
    assert forwards[3].started == copies[1].ended


class Immediate(Mutated, TensorMemory, ImmediateStreams):
    """The CPU's streams, and memory in torch; or streams that lose what the backup lane is given."""

    lossy = False

    def launch(self, lane: Lane, work: Work) -> None:
        if not (self.lossy and lane is Lane.BACKUP):
            super().launch(lane, work)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("page", [1, 4])
def test_on_the_cpu_all_is_right_at_once(protocol: BackupProtocol, page: int) -> None:
    for lossy in (False, True):
        on = Immediate(torch.device("cpu"), dict.fromkeys(Lane, 0))
        on.lossy = lossy
        load = Load(protocol, page, 3, 1)
        Run(load, on, BackupSchedule(on, protocol, load.width, SLOTS, 2 * load.pages)).run()
        assert bool(on.faults) == lossy
