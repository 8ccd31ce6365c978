"""What is scheduled: who starts, who is overtaken, who shares a prefill forward, who is preempted and resumed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.page_needs import spilled_order
from hiscore.decoding.pools.prefix_cache import Found, PrefixCache
from hiscore.decoding.scheduling import scheduler as scheduler_module
from hiscore.decoding.scheduling.batch import make_admission
from hiscore.decoding.scheduling.preemption import PreemptionPolicy
from hiscore.decoding.scheduling.schedule import Schedule
from hiscore.decoding.scheduling.scheduler import MAX_OVERTAKEN, Scheduler
from hiscore.decoding.sequence import Sequence, Status
from tests.support.decode_worker import KINDS, TINY, preempt_after, sequence_of

WIDE = replace(TINY, host_pages=1000, device_pages=1000, staging_pages=100, max_sequences=100)


def sequence(prompt: int = 8, max_tokens: int = 8, sparse: bool = True) -> Sequence:
    return sequence_of(prompt, max_tokens=max_tokens, sparse=sparse)


class Drive:
    """Does what the engine does, reading one iteration later as it does, but without tokens."""

    def __init__(self, cache_config: CacheConfig = TINY, quantum: int = 0) -> None:
        self.scheduler = Scheduler(cache_config, preempt_after(quantum))
        self.undrained: set[int] = set()
        self._before = Schedule()

    def add(self, *sequences: Sequence) -> None:
        for each in sequences:
            self.scheduler.add(each)

    @property
    def used(self) -> int:
        pools = self.scheduler.blocks
        every = pools.seq_indices, pools.host, pools.device, pools.staging, pools.states
        return sum(pool.num_used for pool in every)

    def go(self, iterations: int = 1) -> Schedule:
        schedule = self._before
        for _ in range(iterations):
            schedule = self.scheduler.schedule(lambda seq_index: seq_index not in self.undrained)
            self.scheduler.publish_prompts()
            for each in (*self._before.stepped, *self._before.prefilling):
                each.in_flight -= 1
            for each in (*self._before.stepped, *self._before.completed):
                each.read += 1
                if each.read <= each.num_output_tokens:
                    continue
                each.output_ids.append(5)
                if not each.ended and each.num_output_tokens == each.call.params.max_tokens:
                    self.scheduler.end(each)
            self._before = schedule
        return schedule

    def start(self, each: Sequence) -> Sequence:
        """Add a sequence, and go on until it runs."""
        self.add(each)
        self.until(each, Status.RUNNING)
        return each

    def until(self, each: Sequence, status: Status, most: int = 2000) -> int:
        for iteration in range(most):
            if each.status is status:
                return iteration
            self.go()
        raise AssertionError(f"not {status} after {most} iterations, but {each.status}")


def test_the_life_of_a_sequence() -> None:
    drive, each = Drive(), sequence(prompt=30, max_tokens=3)
    drive.add(each)
    schedule = drive.go()
    assert [(chunk.start, len(chunk.tokens), chunk.is_last) for chunk in schedule.chunks] == [(0, 24, False)]
    assert (schedule.completed, schedule.admitted, schedule.decode_batch) == ([], [], None)
    schedule = drive.go()
    assert [(chunk.start, len(chunk.tokens), chunk.is_last) for chunk in schedule.chunks] == [(24, 6, True)]
    assert schedule.completed == schedule.admitted == [each]
    admission = make_admission(each)
    assert (admission.length, admission.first_token, admission.full_attention) == (30, None, False)
    assert make_admission(sequence(sparse=False)).full_attention
    drive.undrained = {each.held.seq_index}
    assert drive.go(3).decode_batch is None  # until its prompt is offloaded
    assert each.status is Status.ADMITTED
    assert len(each.held.staging_pages) == 2
    drive.undrained = set()
    positions = []
    for _ in range(2):
        schedule = drive.go()
        assert schedule.decode_batch is not None
        positions += schedule.decode_batch.positions.tolist()
    assert positions == [30, 31]
    assert len(each.held.staging_pages) == 0
    assert each.status is Status.DRAINING  # its last token is in flight: no wasted row
    held = each.held
    seq_index, host, device = held.seq_index, held.host_pages, held.device_pages
    drive.undrained = {seq_index}
    assert drive.go(4).releases == []
    drive.undrained = set()
    (release,) = drive.go().releases
    assert (release.seq_index, release.host.tolist(), release.device.tolist()) == (
        seq_index,
        host.tolist(),
        device.tolist(),
    )
    assert each.status is Status.FINISHED
    assert drive.scheduler.idle


def test_a_sequence_of_one_token_is_never_admitted_where_nobody_finds_its_prompt() -> None:
    drive, each = Drive(), sequence(max_tokens=1)
    drive.add(each)
    schedule = drive.go()
    assert schedule.completed == [each]
    assert schedule.admitted == []
    # Nor is it offloaded, as others are.
    assert [len(chunk.host_pages) for chunk in schedule.chunks] == [0]
    assert drive.until(each, Status.FINISHED) <= 3
    drive.add(other := sequence(max_tokens=2))
    assert [chunk.host_pages is other.held.host_pages for chunk in drive.go().chunks] == [True]


def test_sequences_that_run_are_in_every_step_while_others_prefill() -> None:
    drive = Drive(WIDE)
    first = drive.start(sequence(max_tokens=100))
    drive.add(sequence(prompt=100))
    schedules = [drive.go() for _ in range(5)]
    assert all(schedule.stepped == [first] for schedule in schedules)
    assert [len(chunk.tokens) for schedule in schedules for chunk in schedule.chunks] == [24, 24, 24, 24, 4]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 80), st.integers(0, 3)), min_size=1, max_size=12), st.integers(1, 30)
)
def test_a_prefill_is_full_and_half_is_the_oldest_s(prompts: list[tuple[int, int]], chunk: int) -> None:
    drive = Drive(replace(WIDE, prefill_token_budget=chunk))
    pending = [(at, sequence(prompt=length, max_tokens=1)) for length, at in prompts]
    for iteration in range(8 + sum(length for length, _ in prompts)):
        drive.add(*(each for at, each in pending if at == iteration))
        ahead = list(drive.scheduler.queues.prefilling)
        unfilled = {
            each: each.prompt_left
            for _, each in pending
            if each.status in (Status.WAITING, Status.PREFILLING)
        }
        known = {each: left for each, left in unfilled.items() if each in ahead or each.turn.queue_position}
        schedule = drive.go()
        sizes = {
            each: len(part.tokens) for each, part in zip(schedule.prefilling, schedule.chunks, strict=True)
        }
        assert sum(sizes.values()) == min(chunk, sum(known.values()))
        if ahead:
            assert sizes[ahead[0]] >= min(known[ahead[0]], chunk / 2)
    assert all(each.status is Status.FINISHED for _, each in pending)


@pytest.mark.parametrize("limit", [MAX_OVERTAKEN, 10**9])
def test_a_large_sequence_is_overtaken_a_few_times(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the limit it would starve."""
    monkeypatch.setattr(scheduler_module, "MAX_OVERTAKEN", limit)
    # The large one needs every device page; a small one arrives at each step.
    drive, large = Drive(), sequence(prompt=76, max_tokens=4, sparse=False)
    drive.add(sequence(max_tokens=20), large)
    started: list[Sequence] = []
    while large.status is Status.WAITING and len(started) < 500:
        drive.add(small := sequence(prompt=4, max_tokens=6))
        started.append(small)
        drive.go()
    assert large.status is (Status.PREFILLING if limit == MAX_OVERTAKEN else Status.WAITING)
    if limit == MAX_OVERTAKEN:
        assert sum(each.status is not Status.WAITING for each in started) == MAX_OVERTAKEN
        # Those that waited for it are not starved in turn.
        assert drive.until(started[-1], Status.FINISHED) < 2000


def fill(drive: Drive, number: int = 4, max_tokens: int = 60, **options: Any) -> list[Sequence]:
    """As many sequences as may run in `TINY`, started one after the other: the first has run longest."""
    return [drive.start(sequence(max_tokens=max_tokens, **options)) for _ in range(number)]


def test_the_longest_running_is_preempted_and_resumed_without_a_prefill() -> None:
    """Beside the steps of the others, which it joins when its copy has landed."""
    drive = Drive(quantum=10)
    running = fill(drive)
    drive.add(late := sequence())
    before = [each.turn.steps_run for each in running]
    preempted_after = drive.until(running[0], Status.DRAINING)
    assert preempted_after == 10  # steps that the late one has waited
    assert before == sorted(before, reverse=True)
    host = running[0].held.host_pages
    seq_index = running[0].held.seq_index
    drive.undrained = {seq_index}
    assert drive.go(5).releases == []  # not before its offloads have landed
    assert late.status is Status.WAITING
    assert all(each.status is Status.RUNNING for each in running[1:])
    drive.undrained = set()
    schedule = drive.go()
    assert [(release.seq_index, len(release.host)) for release in schedule.releases] == [(seq_index, 0)]
    assert (running[0].status, late.status) == (Status.PREEMPTED, Status.ADMITTED)
    assert running[0].held.host_pages.tolist() == host.tolist()
    assert drive.scheduler.preemptions == 1
    length, received = running[0].length, running[0].num_output_tokens
    assert length == 8 + received - 1  # all but the newest token have been fed
    while running[0].status is Status.PREEMPTED:
        schedule = drive.go()
    assert schedule.resumed == [running[0]]
    assert schedule.admitted == schedule.chunks == []
    drive.undrained = {running[0].held.seq_index}
    for _ in range(4):
        schedule = drive.go()
        assert schedule.admitted == []
        assert len(schedule.stepped) == 3
    assert running[0].status is Status.RESTORING
    drive.undrained = set()
    schedule = drive.go()
    assert schedule.admitted == [running[0]]
    assert (len(schedule.stepped), schedule.chunks) == (3, [])
    running[0].output_ids[-1] = 5
    admission = make_admission(running[0])
    assert (admission.length, admission.first_token) == (length, 5)
    assert admission.host_pages[: len(host)].tolist() == host.tolist()
    assert running[0].turn.steps_run == 0
    schedule = drive.go()
    assert schedule.decode_batch is not None
    assert schedule.decode_batch.positions[schedule.stepped.index(running[0])] == length
    drive.until(running[0], Status.FINISHED)
    assert running[0].num_output_tokens == 60


@pytest.mark.parametrize("has_index", [True, False])
def test_who_goes_on_selecting_needs_its_buffer_alone(has_index: bool) -> None:
    """The first page and the newest ones, in so many pages of staging; the control needs all to make its index."""
    drive = Drive(replace(TINY, staging_pages=16), quantum=10)
    first, *_ = fill(drive, prompt=40)
    drive.add(sequence())
    drive.until(first, Status.PREEMPTED)
    assert first.has_index
    first.has_index = has_index
    while not drive.go().resumed:
        assert first.status is Status.PREEMPTED
    newest = -(-first.length // TINY.page_size) - 1
    if has_index:
        assert first.held.restored_pages is not None
        before = range(newest - len(first.held.restored_pages) + 2, newest + 1)
        assert first.held.restored_pages.tolist() == [0, *before]
        assert 4 <= len(first.held.restored_pages) <= 5
        assert len(first.held.staging_pages) == -(-len(first.held.restored_pages) * 4 // 16) <= 2
    else:
        assert first.held.restored_pages is None
        assert len(first.held.staging_pages) == -(-first.length // 16) > 2
    assert make_admission(first).is_buffer_alone == has_index


BESIDE = [({}, True), (KINDS[3], False), ({"host_is_shared": True}, False)]
"""Of `CacheConfig`, and whether copies from the host run beside forwards."""


@pytest.mark.parametrize(("kind", "beside"), BESIDE)
def test_who_is_resumed_loses_one_only_to_a_copy_beside(kind: dict[str, Any], beside: bool) -> None:
    drive = Drive(replace(TINY, **kind), quantum=10)
    first, *_ = fill(drive)
    drive.add(sequence())
    drive.until(first, Status.PREEMPTED)
    while not (schedule := drive.go()).resumed:
        assert first.status is Status.PREEMPTED
    assert schedule.resumed == [first]
    assert len(schedule.stepped) == 3
    assert schedule.admitted == ([] if beside else [first])
    assert drive.go().admitted == ([first] if beside else [])


@pytest.mark.parametrize(("kind", "beside"), BESIDE)
def test_who_begins_as_another_loses_one_only_to_a_copy_beside(kind: dict[str, Any], beside: bool) -> None:
    drive = Drive(replace(TINY, prefix_cache=True, **kind))
    fill(drive, 1, prompt=40)
    drive.go(2)
    drive.add(later := sequence(prompt=40))
    schedules = [drive.go() for _ in range(2)]
    assert [each for each, _ in schedules[0].fetched] == [later]
    assert [schedule.prefilling for schedule in schedules] == ([[], [later]] if beside else [[later], []])


@pytest.mark.parametrize("lost", [True, False])
def test_what_was_lost_is_not_found_until_it_is_back(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lost all it had ends while its prompt is prefilled again; the control lost nothing."""
    published: list[Sequence] = []
    monkeypatch.setattr(PrefixCache, "publish", lambda _, each, *rest: published.append(each))
    drive = Drive(replace(TINY, prefix_cache=True), quantum=10)
    first, *others = fill(drive, prompt=40)
    drive.add(sequence(prompt=40))
    drive.until(first, Status.PREEMPTED)
    if lost:
        drive.scheduler._reclaimer.take_host_blocks(first, len(first.held.host_pages), [])
    for each in others:
        drive.scheduler.end(each)
    published.clear()
    drive.until(first, Status.PREFILLING if lost else Status.RUNNING)
    assert first.prompt_left > 0 or not lost
    drive.scheduler.end(first)
    drive.until(first, Status.FINISHED)
    assert (first in published) != lost


@pytest.mark.parametrize("preempt", [False, True])
def test_who_starts_begins_its_turn_anew(preempt: bool) -> None:
    """If its counts were kept, it would bar all others as soon as it waits again, or be preempted at once."""
    drive = Drive(quantum=5)
    if preempt:
        each, *others = fill(drive)
        late = sequence()
        drive.add(late)
        drive.until(each, Status.PREEMPTED)
    else:
        others = fill(drive)
        drive.add(each := sequence(max_tokens=20))
    each.turn.times_overtaken, each.turn.steps_run = MAX_OVERTAKEN, 30
    for other in others[:2]:
        drive.scheduler.end(other)
    drive.until(each, Status.ADMITTED)
    assert (each.turn.times_overtaken, each.turn.steps_run) == (0, 0)


@pytest.mark.parametrize("large_first", [False, True])
def test_only_those_that_are_passed_over_are_overtaken(large_first: bool) -> None:
    drive, large = Drive(), [sequence(prompt=76, max_tokens=4, sparse=False) for _ in range(2)]
    small = [sequence(prompt=4, max_tokens=4) for _ in range(2)]
    drive.add(sequence(max_tokens=100))
    drive.go()
    drive.add(*([*large, *small] if large_first else [*small, *large]))
    drive.go()
    assert [each.status for each in large] == [Status.WAITING] * 2
    assert [each.turn.times_overtaken for each in large] == [2 if large_first else 0] * 2
    assert [each.turn.times_overtaken for each in small] == [0, 0]


@pytest.mark.parametrize(
    ("overtaken", "host_pages", "kept"),
    [(0, 160, False), (MAX_OVERTAKEN, 160, True), (MAX_OVERTAKEN, 88, True)],
)
def test_what_becomes_free_is_for_one_often_overtaken(overtaken: int, host_pages: int, kept: bool) -> None:
    """From preempted sequences too."""
    drive = Drive(replace(TINY, host_pages=host_pages), quantum=5)
    running = fill(drive)
    large = sequence(prompt=76, max_tokens=4, sparse=False)  # needs every device page
    drive.add(sequence(max_tokens=60), large)
    large.turn.times_overtaken = overtaken
    drive.until(running[0], Status.PREEMPTED)
    assert large.turn.queue_position < running[0].turn.queue_position
    drive.scheduler.end(running[1])
    drive.go(4)
    assert large.status is Status.WAITING
    assert (running[0].status is Status.PREEMPTED) == kept


def test_nobody_is_preempted_without_a_quantum_or_before_it() -> None:
    for quantum in (0, 50):
        drive = Drive(quantum=quantum)
        running = fill(drive, max_tokens=110)
        drive.add(sequence())
        drive.go(20)
        assert all(each.status is Status.RUNNING for each in running)
    drive.go(31)
    assert running[0].status is not Status.RUNNING


def test_a_preempted_sequence_that_ends_gives_its_host_pages_back() -> None:
    drive = Drive(quantum=5)
    first, *_ = fill(drive)
    drive.add(sequence(max_tokens=60))
    drive.until(first, Status.PREEMPTED)
    host = first.held.host_pages.tolist()
    drive.scheduler.end(first)
    assert [(release.seq_index, release.host.tolist()) for release in drive.go().releases] == [(-1, host)]


def test_nobody_is_preempted_in_vain() -> None:
    # Two would have to be preempted.
    drive = Drive(quantum=5)
    running = fill(drive, max_tokens=60)
    drive.go(33)
    drive.add(sequence(prompt=30, max_tokens=20, sparse=False))
    drive.go(8)
    assert drive.scheduler.preemptions == 0
    assert all(each.status is Status.RUNNING for each in running)


def test_sequences_take_turns_and_each_runs_a_quantum_at_least() -> None:
    """One of them is resumed per iteration."""
    drive = Drive(replace(TINY, host_pages=1000), quantum=20)
    sequences = [sequence(max_tokens=100) for _ in range(16)]
    drive.add(*sequences)
    shortest, resumed = 10**9, 0
    while not drive.scheduler.idle:
        ran = {each: each.turn.steps_run for each in sequences if each.status is Status.RUNNING}
        now = drive.go().resumed
        assert len(now) <= 1
        resumed += len(now)
        for each, steps in ran.items():
            if each.status is Status.DRAINING and not each.all_sampled:
                shortest = min(shortest, steps + 1)
    assert resumed == drive.scheduler.preemptions > 16
    assert shortest >= 20
    assert all(each.num_output_tokens == 100 for each in sequences)


def test_pages_are_given_out_as_a_sequence_grows() -> None:
    """Not for `max_tokens` when it starts: so many more run at once."""
    drive = Drive(replace(TINY, host_pages=40, device_pages=40, max_sequences=10))
    sequences = [sequence(prompt=6, max_tokens=100) for _ in range(10)]  # 27 pages each, in the end
    drive.add(*sequences)
    drive.go(6)
    assert [each.status for each in sequences] == [Status.RUNNING] * 10
    assert [len(each.held.host_pages) for each in sequences] == [
        -(-(each.length + 1) // 4) for each in sequences
    ]
    for each in sequences:
        drive.until(each, Status.FINISHED, most=10_000)


@pytest.mark.parametrize("pool", ["host_pages", "device_pages"])
def test_when_a_pool_is_full_the_newest_is_preempted(pool: str) -> None:
    drive = Drive(replace(TINY, **{pool: 19}))
    old, new = (sequence(prompt=20, max_tokens=50, sparse=False) for _ in range(2))
    drive.add(old, new)
    drive.until(new, Status.PREEMPTED)
    assert (old.status, new.turn.steps_run > 0) == (Status.RUNNING, True)
    # Only a full pool on the host takes pages there, its last ones, and then it is computed again from there.
    lost = len(new.call.prompt) + new.num_output_tokens - 1 - new.length
    assert (0 < lost <= TINY.page_size) == (pool == "host_pages")
    assert new.replayed == (new.num_output_tokens if pool == "host_pages" else 0)
    drive.until(old, Status.FINISHED)
    assert old.turn.steps_run == 49  # it was never interrupted
    drive.until(new, Status.FINISHED)
    assert new.num_output_tokens == 50


@pytest.mark.parametrize(("pages", "second"), [(6, Status.WAITING), (7, Status.ADMITTED)])
def test_who_starts_leaves_a_page_to_one_of_the_same_iteration(pages: int, second: Status) -> None:
    """Each takes three pages of the device, and will need a fourth."""
    drive = Drive(replace(TINY, device_pages=pages))
    sequences = [sequence(prompt=8, max_tokens=50, sparse=False) for _ in range(2)]
    drive.add(*sequences)
    drive.go()
    assert [each.status for each in sequences] == [Status.ADMITTED, second]


def test_the_oldest_gets_the_last_page_though_others_ran_before_it() -> None:
    drive = Drive(replace(TINY, device_pages=17))
    old, new = (sequence(prompt=length, max_tokens=50, sparse=False) for length in (41, 16))
    drive.add(old, new)
    drive.until(old, Status.RUNNING)
    assert [*drive.scheduler.queues.running] == [new, old]
    stepped = [old]
    while new.status is Status.RUNNING:
        stepped = drive.go().stepped
        assert old in stepped
    assert (new.status, stepped) == (Status.DRAINING, [old])


def test_a_spilled_sequence_keeps_its_tokens_where_they_are() -> None:
    device = np.arange(100, 105, dtype=np.int32)
    # Pages 0 to 4 of a buffer with 3 pages under LRU and a ring of 2; page 5 begins, and drops page 3.
    assert [each if isinstance(each, int) else each.tolist() for each in spilled_order(5, device, 3, 2)] == [
        [100, 101, 102, 104, 103],
        3,
    ]
    # Earlier, because pages come in blocks: page 3 takes its place in the ring, where the last page is.
    order, spilled = spilled_order(3, device, 3, 2)
    assert (order[:2].tolist(), spilled, order[3 + 2 % 2], set(order.tolist())) == (
        [100, 101], 2, 102, set(device.tolist()),
    )  # fmt: skip


@pytest.mark.parametrize("resident_if_it_fits", [False, True])
@pytest.mark.parametrize("most", [1024, 0])
def test_one_that_attends_to_all_does_not_hold_up_small_ones(most: int, resident_if_it_fits: bool) -> None:
    """It grows until it leaves no room on the device for small ones. most=0: the control."""
    config = replace(TINY, context_length=4000, host_pages=2000, device_pages=1000, staging_pages=300)
    drive = Drive(replace(config, resident_if_it_fits=resident_if_it_fits))
    drive.scheduler._starvation._policy = PreemptionPolicy(most=most)
    large = drive.start(sequence(prompt=1900, max_tokens=2000, sparse=False))
    drive.go(1100)
    waits = []
    for _ in range(5):
        drive.add(small := sequence(prompt=1000, max_tokens=8, sparse=False))
        waits.append(drive.until(small, Status.FINISHED, most=5000))
    # Its wait, a turn of the large one, a forward for each 24 tokens, its steps, and waits for copies.
    bound = 64 + 64 + 42 + 8 + 20
    assert max(waits) <= bound if most else waits[0] > 800
    drive.until(large, Status.FINISHED, most=10_000)
    assert large.num_output_tokens == 2000


def test_long_ones_that_wait_for_long_ones_preempt_nobody() -> None:
    """They do not run in turns: that would cost copies and gain nothing."""
    config = replace(TINY, context_length=1000, host_pages=10_000, device_pages=100, max_sequences=4)
    drive = Drive(config)
    drive.scheduler._starvation._policy = PreemptionPolicy()
    sequences = [sequence(max_tokens=600) for _ in range(12)]
    drive.add(*sequences)
    for each in sequences:
        drive.until(each, Status.FINISHED, most=10_000)
    assert drive.scheduler.preemptions == 0


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.FINISHED])
def test_an_end_at_each_stage_gives_all_back(status: Status) -> None:
    drive = Drive(replace(TINY, prefill_token_budget=3), quantum=3)
    sequences = [sequence(max_tokens=20) for _ in range(6)]
    drive.add(*sequences)
    victim = next((each for each in sequences if each.status is status), None)
    while victim is None:
        assert not drive.scheduler.idle, f"none was {status}"
        drive.go()
        victim = next((each for each in sequences if each.status is status and not each.ended), None)
    drive.scheduler.end(victim)
    sampled = victim.sampled
    drive.until(victim, Status.FINISHED, most=4)
    assert victim.sampled == sampled  # it was not launched again
    for each in sequences:
        if each is not victim:
            drive.until(each, Status.FINISHED)
    assert drive.used == 0


CONFIGS = st.builds(
    lambda kind, **sizes: replace(TINY, context_length=80, **kind, **sizes),
    kind=st.sampled_from(KINDS),
    host_pages=st.integers(20, 100),
    prefill_token_budget=st.integers(8, 30),
    block_size=st.sampled_from([4, 8]),
    prefix_cache=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data(), st.sampled_from([0, 2, 5]), CONFIGS)
def test_all_sequences_get_through(data: st.DataObject, quantum: int, config: CacheConfig) -> None:
    """Whenever calls arrive and end: no deadlock, no page to two, and all pages are free in the end.

    The least pools hold just one of the longest sequences.
    """
    drive, sequences = Drive(config, quantum), []
    for _ in range(data.draw(st.integers(1, 30))):
        each = sequence(
            data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)), data.draw(st.booleans())
        )
        drive.add(each)
        sequences.append(each)
        drive.go(data.draw(st.integers(0, 6)))
        if data.draw(st.integers(0, 5)) == 0 and not (ending := data.draw(st.sampled_from(sequences))).ended:
            drive.scheduler.end(ending)
    for _ in range(20_000):
        if drive.scheduler.idle:
            break
        drive.go()
    assert drive.scheduler.idle
    assert drive.used == 0
    assert all(each.status is Status.FINISHED and each.ended and each.in_flight == 0 for each in sequences)


def test_one_that_starts_over_and_is_preempted_again_keeps_all_of_its_pages() -> None:
    """It is resumed with the pages that it has, more than its tokens need so far."""
    drive = Drive()
    each = drive.start(sequence(prompt=8, max_tokens=60, sparse=False))
    drive.go(30)
    scheduler = drive.scheduler
    for gives_up in (1000, 0):
        each.turn.gives_up = gives_up
        scheduler.queues.move(each, Status.DRAINING)
        drive.until(each, Status.RUNNING)
        drive.go(3)
    assert 0 < each.sampled < each.replayed
    assert len(each.held.device_pages) == len(each.held.host_pages)
    assert scheduler.blocks.host.num_used == scheduler.blocks.device.num_used == len(each.held.host_pages)
    drive.until(each, Status.FINISHED)
    assert each.num_output_tokens == 60


def test_the_prefix_of_one_that_lacks_other_pages_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step, for all that wait: what is found spares blocks of the host alone."""
    looked_up: list[Sequence] = []
    take = PrefixCache.take

    def count(cache: PrefixCache, each: Sequence) -> Found:
        looked_up.append(each)
        return take(cache, each)

    monkeypatch.setattr(PrefixCache, "take", count)
    # Five device pages for each of those that run: two run, and there is an index for more.
    drive = Drive(replace(TINY, prefix_cache=True, device_pages=10))
    running, late = fill(drive, 2, prompt=40), sequence(prompt=40)
    drive.add(late)
    drive.go(10)
    assert late.status is Status.WAITING
    assert late not in looked_up
    drive.scheduler.end(running[0])
    drive.until(late, Status.RUNNING)
    assert looked_up.count(late) == 1
    assert late.cached_tokens > 0


def test_a_snapshot_of_a_prompt_that_is_being_prefilled_holds_up_no_other_sequence() -> None:
    """With a slot for each stream: another takes that of the snapshot, and the prompt's later one is kept."""
    drive = Drive(replace(WIDE, prefix_cache=True, state_slots=2, max_sequences=2, prefill_token_budget=4))
    earlier, long, short = (
        sequence_of(n, max_tokens=m, sparse=False) for n, m in ((40, 1), (100, 9), (4, 4))
    )
    drive.add(earlier)
    drive.until(earlier, Status.FINISHED)
    drive.add(long)
    drive.go()
    states, early = drive.scheduler.blocks.states, dict(long.held.snapshots)
    assert list(early) == [40]
    assert states.num_free == 1
    drive.add(short)
    drive.go(2)
    assert short.held.state_slot == early[40]
    assert (long.status, long.held.snapshots) == (Status.PREFILLING, {})
    drive.until(short, Status.FINISHED)
    assert long.status is Status.PREFILLING
    drive.until(long, Status.FINISHED)
    assert (states.num_used, states.num_cached) == (0, 1)
    again = sequence_of(100, max_tokens=1, sparse=False)
    drive.add(again)
    drive.until(again, Status.FINISHED)
    assert again.cached_tokens == 96
