"""SELECTOR=auto: who attends to everything, and who is spilled for want of device pages."""

from dataclasses import replace

import numpy as np
import pytest

from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.decoding.scheduling.batch import make_admission
from hiscore.decoding.scheduling.scheduler import Scheduler
from hiscore.decoding.sequence import Sequence, Status
from tests.support.decode_worker import TINY
from tests.unit.decoding.scheduling.test_scheduler import Drive, sequence

# A buffer is 5 pages of 4 tokens.
AUTO = replace(
    TINY, resident_if_it_fits=True, device_pages=40, staging_pages=32, host_pages=400, context_length=240
)


def kinds(scheduler: Scheduler) -> list[tuple[int, bool]]:
    """Device pages of those that run, and whether each attends to everything."""
    return [(len(each.held.device_pages), each.resident) for each in scheduler.queues.running]


def start(*sequences: Sequence) -> Drive:
    drive = Drive(AUTO)
    for each in sequences:
        drive.start(each)
    return drive


def test_while_all_fits_everyone_attends_to_everything() -> None:
    long, short = sequence(prompt=60, max_tokens=30), sequence(prompt=8, max_tokens=30)
    drive = start(long, short)
    assert make_admission(long).full_attention
    drive.go(20)
    assert kinds(drive.scheduler) == [(-(-(long.length) // 4), True), (-(-(short.length) // 4), True)]
    assert drive.scheduler.preemptions == 0
    # As without selection, to the page: the control is the same load under another selector.
    sparse = Drive(replace(AUTO, resident_if_it_fits=False))
    other = sparse.start(sequence(prompt=60, max_tokens=30))
    assert (len(other.held.device_pages), make_admission(other).full_attention) == (5, False)


def test_the_longest_is_spilled_for_one_that_waits() -> None:
    long, middle, late = (sequence(prompt, 40) for prompt in (70, 50, 40))
    drive = start(long, middle)
    drive.start(late)
    drive.until(long, Status.RUNNING)
    assert (long.resident, middle.resident, late.resident) == (False, True, True)
    assert len(long.held.device_pages) == 5
    assert not make_admission(long).full_attention
    assert long.restored  # from its host pages: nothing is computed twice
    # All of them: its index is made of these. Later on it has one, and needs no more than its buffer.
    assert (long.held.restored_pages, long.has_index, middle.has_index) == (None, True, False)
    assert drive.scheduler.blocks._prompts.to_stage(long) < long.length
    assert long.replayed == 0


def test_one_that_is_the_longest_itself_spills_nobody() -> None:
    first, late = sequence(prompt=80, max_tokens=60), sequence(prompt=100, max_tokens=20)
    drive = start(first)
    drive.start(late)
    assert (first.resident, late.resident) == (True, False)
    assert drive.scheduler.preemptions == 0


def test_the_longest_is_spilled_when_one_grows() -> None:
    long, short = sequence(prompt=100, max_tokens=80), sequence(prompt=40, max_tokens=80)
    drive = start(long, short)
    drive.until(short, Status.FINISHED)
    assert (long.resident, short.resident, drive.scheduler.preemptions) == (False, True, 1)
    drive.until(long, Status.FINISHED)
    assert (long.num_output_tokens, short.num_output_tokens) == (80, 80)


def test_one_that_is_spilled_selects_to_its_end() -> None:
    long, late = sequence(prompt=70, max_tokens=80), sequence(prompt=64, max_tokens=3)
    drive = start(long, sequence(prompt=24, max_tokens=8))
    drive.start(late)
    drive.until(late, Status.FINISHED)
    drive.until(long, Status.FINISHED)
    assert (long.resident, drive.scheduler.preemptions) == (False, 1)
    assert long.num_output_tokens == 80


def test_a_request_that_must_attend_to_everything_is_never_spilled() -> None:
    full, late = sequence(prompt=100, max_tokens=20, sparse=False), sequence(prompt=60, max_tokens=8)
    drive = start(full)
    drive.start(late)
    assert not late.resident
    assert full.status is Status.RUNNING
    assert make_admission(full).full_attention


def found_again(drive: Drive, ended: Sequence) -> int:
    """Tokens that a prompt finds which is all that a sequence had."""
    tokens = np.append(ended.call.prompt, np.array(ended.output_ids, np.int32))
    again = Sequence(replace(ended.call, prompt=tokens), None, StopChecker(ended.call.params, set()))
    return len(drive.scheduler.prefix_cache.take(again).blocks) * AUTO.block_tokens


@pytest.mark.parametrize("spilled", [True, False])
def test_what_was_generated_by_selection_is_found_by_nobody(spilled: bool) -> None:
    """Its keys and values are others than those of a sequence that attends to everything; the control is such."""
    drive = Drive(replace(AUTO, prefix_cache=True))
    long = drive.start(sequence(70, 40))
    dense = long.length
    if spilled:
        assert drive.scheduler._reclaimer.spill([long])
    drive.until(long, Status.FINISHED)
    tokens = dense if spilled else 70 + 40 - 1  # the last token's keys are never computed
    assert found_again(drive, long) == tokens // AUTO.block_tokens * AUTO.block_tokens


@pytest.mark.parametrize("resident", [False, True])
def test_what_selection_computes_again_is_found_by_nobody(resident: bool) -> None:
    """A spilled sequence that starts over selects where it attended to everything; the control does not select."""
    drive = Drive(replace(AUTO, prefix_cache=True))
    long = drive.start(sequence(30, 90))
    drive.go(40)
    assert drive.scheduler._reclaimer.spill([long])
    dense = long.full_attention_tokens
    assert dense > 64
    long.resident, long.turn.gives_up = resident, len(long.held.host_pages)
    drive.until(long, Status.ADMITTED)
    assert long.replayed == long.num_output_tokens
    host = drive.scheduler.blocks.host
    host.release(host.allocate(host.num_free))  # what it had computed before is found no more
    drive.until(long, Status.FINISHED)
    assert found_again(drive, long) == (dense if resident else 30) // AUTO.block_tokens * AUTO.block_tokens
