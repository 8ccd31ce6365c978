"""Device pages of sequences that have ended: who takes them over, and that nobody is held up by them."""

from dataclasses import replace

import numpy as np
import pytest

from hiscore.decoding.engine.stats import EngineStats
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.pools.device_pool import DevicePool
from hiscore.decoding.sequence import DecodeCall, Sequence, Status
from tests.support.decode_worker import KINDS, TINY, VOCABULARY, HashWorker
from tests.unit.decoding.engine.test_engine import Caller, Callers, assert_as_alone, call, running
from tests.unit.decoding.scheduling.test_scheduler import Drive, sequence

PAGE = STAGING_PAGE_SIZE
STAYS = replace(TINY, **KINDS[4], prefix_cache=True)
"""16 device pages of 16 tokens, 8 of them reserved; a buffer is 3."""
SMALL = replace(STAYS, host_pages=10, device_pages=24)
"""The host evicts blocks whose pages are still on the device."""


def run(drive: Drive, each: Sequence) -> None:
    drive.add(each)
    drive.until(each, Status.FINISHED)


def found_by(drive: Drive, each: Sequence) -> Prefix:
    drive.add(each)
    for _ in range(100):
        if fetched := drive.go().fetched:
            return fetched[0][1]
    raise AssertionError("nothing was found")


def test_a_prompt_takes_over_the_pages_that_stay() -> None:
    drive = Drive(STAYS)
    first = drive.start(sequence(70))
    pages = first.held.device_pages[:4]
    drive.until(first, Status.FINISHED)
    device = drive.scheduler.blocks.device
    assert (device.num_free, device.num_cached) == (16, 4)
    drive.start(sequence(5, 100))
    prefix = found_by(drive, later := sequence(80))
    assert later.held.device_pages[:4].tolist() == pages.tolist()
    assert (prefix.tokens, prefix.on_device.tolist()) == (64, [True] * 4)
    assert later.status is Status.ADMITTED  # prefilled at once: there is no copy to wait for
    cache = drive.scheduler.prefix_cache
    assert (cache.cached_tokens, cache.cached_on_device) == (64, 64)
    assert device.num_cached == 0
    drive.until(later, Status.FINISHED)


def test_what_is_only_on_the_host_is_fetched() -> None:
    drive = Drive(STAYS)
    run(drive, sequence(70))
    device = drive.scheduler.blocks.device
    device.free(device.allocate(14))  # two of four pages are evicted, the last ones
    drive.start(sequence(5, 100))
    prefix = found_by(drive, later := sequence(80, 2))
    assert prefix.on_device.tolist() == [True, True, False, False]
    assert later.status is Status.RESTORING
    cache = drive.scheduler.prefix_cache
    assert (cache.cached_tokens, cache.cached_on_device) == (64, 32)


@pytest.mark.parametrize("how", ["as a whole", "failed", "spilled", "staging", "no cache"])
def test_only_pages_of_one_that_ends_well_and_as_a_whole_stay(how: str) -> None:
    config = replace(STAYS, prefix_cache=how != "no cache")
    if how == "staging":
        config = replace(config, prompts_in="staging", staging_pages=8)
    drive = Drive(config)
    each = drive.start(sequence(70, 10))
    each.has_failed = how == "failed"
    if how == "spilled":
        assert drive.scheduler._reclaimer.spill([each])
    drive.until(each, Status.FINISHED)
    assert drive.scheduler.blocks.device.num_cached == (4 if how == "as a whole" else 0)
    assert drive.scheduler.blocks.device.num_used == 0


def test_pages_that_stay_hold_up_nobody() -> None:
    """As if they were free: nobody is spilled, preempted or made to wait. The control: pages that are not free."""
    schedules = []
    for cached in (True, False):
        drive = Drive(replace(STAYS, prefix_cache=cached))
        for length in (70, 60, 50):
            run(drive, sequence(length, 2))
        # They share nothing with these.
        others = [sequence(60, 40), sequence(40, 60)]
        for each in others:
            each.call.prompt[:] += 100
        drive.add(*others)
        schedules.append([])
        while not drive.scheduler.idle:
            drive.go()
            schedules[-1].append([(each.status, each.length, each.resident) for each in others])
        assert drive.scheduler.preemptions == 0
    assert schedules[0] == schedules[1]
    held = Drive(STAYS)
    held.scheduler.blocks.device.allocate(8)
    held.add(*(others := [sequence(60, 40), sequence(40, 60)]))
    for each in others:
        held.until(each, Status.FINISHED)
    assert held.scheduler.preemptions > 0


def test_what_a_sequence_that_runs_holds_is_copied_and_its_own_pages_stay() -> None:
    drive = Drive(STAYS)
    first = drive.start(sequence(40, 40))
    drive.go(2)
    prefix = found_by(drive, second := sequence(40, 2))
    assert not prefix.on_device.any()
    drive.until(second, Status.FINISHED)
    # Its blocks are found under the first one's: nobody would look for its pages.
    assert drive.scheduler.blocks.device.num_cached == 0
    pages = first.held.device_pages
    drive.until(first, Status.FINISHED)
    third = sequence(40, 2)
    assert found_by(drive, third).on_device.all()
    assert third.held.device_pages[:2].tolist() == pages[:2].tolist()


def test_one_that_is_cancelled_before_its_first_token_leaves_what_it_took_over() -> None:
    drive = Drive(replace(STAYS, prefill_token_budget=4))
    run(drive, sequence(70))
    found_by(drive, later := sequence(80))
    assert later.status is Status.PREFILLING
    drive.scheduler.end(later)
    drive.until(later, Status.FINISHED)
    assert drive.scheduler.blocks.device.num_cached == 4
    assert found_by(drive, sequence(80, 2)).on_device.all()


def test_one_that_selects_from_the_start_fetches_and_leaves_them() -> None:
    """It borrows pages for its prompt and keeps a buffer: what stays remains for the next."""
    drive = Drive(STAYS)
    run(drive, sequence(70))
    later = sequence(80, 2)
    drive.add(later)
    later.resident = False
    prefix = next(fetched[0][1] for _ in range(9) if (fetched := drive.go().fetched))
    assert not prefix.on_device.any()
    assert len(later.held.device_pages) == 3
    assert not np.isin(later.held.borrowed_pages, later.held.device_pages).any()
    drive.until(later, Status.FINISHED)
    assert drive.scheduler.blocks.device.num_cached == 4


def converse(worker: HashWorker, seed: int) -> EngineStats:
    """A few callers at a time, each of whom adds to what was said or begins anew: all have their tokens."""
    random, callers = np.random.default_rng(seed), Callers()
    calls: dict[Caller, DecodeCall] = {}
    said = [list[int]() for _ in range(6)]
    with running(worker, callers, quantum=3) as engine:
        for turn in range(12):
            now = []
            for i in random.permutation(len(said))[: int(random.integers(1, 4))].tolist():
                if len(said[i]) > 70:
                    said[i] = []
                said[i] += [i % 2, *random.integers(8, VOCABULARY, random.integers(1, 20)).tolist()]
                caller = Caller(100 * turn + i)
                calls[caller] = call(said[i], int(random.integers(1, 12)), ignore_eos=True)
                now.append((i, caller))
                engine.submit(calls[caller], caller)
            callers.wait(lambda names=[name for _, name in now]: all(each in callers.ends for each in names))
            for i, caller in now:
                said[i] += callers.tokens[caller]
        stats = engine.stats()
    for caller, wanted in calls.items():
        assert_as_alone(callers, caller, wanted)
    return stats


@pytest.mark.parametrize("seed", range(6))
def test_conversations_that_share_small_pools_have_the_tokens_that_they_have_alone(seed: int) -> None:
    worker = HashWorker(SMALL, delay=3)
    stats = converse(worker, seed)
    assert stats.cached_on_device > 0
    assert stats.cached_tokens == stats.cached_on_device + worker.fetched_tokens


def test_pages_of_a_block_that_others_have_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the host evicts stays on the device."""
    monkeypatch.setattr(DevicePool, "evict", lambda pool, blocks: None)

    def converse_often() -> None:
        for seed in range(20):
            converse(HashWorker(SMALL, delay=3), seed)

    with pytest.raises((AssertionError, KeyError)):  # a violation, other tokens, or none at all
        converse_often()
