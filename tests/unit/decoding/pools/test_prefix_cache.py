"""What is hashed of a prompt, and when what sequences have can be found."""

from dataclasses import replace

import numpy as np
import pytest

from hiscore.decoding.pools.prefix_cache import PrefixCache
from hiscore.decoding.sequence import Sequence, Status
from hiscore.page_hashes import PageHashes
from tests.support.decode_worker import KINDS, TINY
from tests.unit.decoding.scheduling.test_scheduler import Drive, sequence

CACHING = replace(TINY, **KINDS[4], prefix_cache=True)
BLOCK = CACHING.block_tokens


def ended(drive: Drive, prompt: int) -> Sequence:
    drive.add(each := sequence(prompt))
    drive.until(each, Status.FINISHED)
    return each


def hashed(drive: Drive, each: Sequence) -> int:
    drive.scheduler.prefix_cache.hash_prompt(each)
    assert each.hashes
    return len(each.hashes.pages)


def test_a_prompt_that_is_unknown_is_hashed_no_further_than_its_first_block() -> None:
    """The control: one that begins like another."""
    drive = Drive(CACHING)
    assert hashed(drive, sequence(5 * BLOCK)) == 1
    ended(drive, 3 * BLOCK)
    assert hashed(drive, sequence(5 * BLOCK)) == 4
    other = sequence(5 * BLOCK)
    other.call.prompt[0] += 1
    assert hashed(drive, other) == 1


@pytest.mark.parametrize("prompt", [1, BLOCK, BLOCK + 1])
def test_a_token_is_left_to_be_prefilled(prompt: int) -> None:
    drive = Drive(CACHING)
    ended(drive, 3 * BLOCK)
    assert len(drive.scheduler.prefix_cache.take(sequence(prompt)).blocks) == (prompt - 1) // BLOCK


def test_what_is_hashed_in_parts_has_the_hashes_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the call comes, when its prompt is published, and when it ends."""
    drive = Drive(CACHING)
    ended(drive, BLOCK)
    counts, publish = [], PrefixCache.publish

    def count(cache: PrefixCache, each: Sequence, *others: object) -> None:
        assert each.hashes
        before = len(each.hashes.pages)
        publish(cache, each, *others)  # type: ignore[arg-type]
        counts.append((before, len(each.hashes.pages)))

    monkeypatch.setattr(PrefixCache, "publish", count)
    each = sequence(2 * BLOCK + 3, 2 * BLOCK)
    drive.scheduler.prefix_cache.hash_prompt(each)
    drive.add(each)
    drive.until(each, Status.FINISHED)
    assert counts == [(2, 2), (2, 4)]
    assert each.hashes
    whole = PageHashes(BLOCK, b"True:")
    whole.extend(np.concatenate((each.call.prompt, np.array(each.output_ids, np.int32))))
    assert each.hashes.pages == whole.pages


def test_what_is_generated_is_hashed_in_parts_as_the_whole() -> None:
    """As when a sequence is preempted again and again: each time more of it is published."""
    scheduler = Drive(CACHING).scheduler
    each = sequence(BLOCK, 4 * BLOCK)
    each.output_ids.extend(range(3 * BLOCK))
    blocks = scheduler.blocks.host.allocate(4)
    for full in (2, 3, 4):
        scheduler.prefix_cache.publish(each, blocks, full * BLOCK)
    whole = PageHashes(BLOCK, b"True:")
    whole.extend(np.concatenate((each.call.prompt, np.array(each.output_ids, np.int32))))
    assert each.hashes
    assert each.hashes.pages == whole.pages


@pytest.mark.parametrize("someone_waits", [False, True])
def test_prompts_are_published_when_an_iteration_has_been_launched(someone_waits: bool) -> None:
    """Nothing of what is launched waits for that, unless it may be found by what is."""
    drive = Drive(CACHING)
    first = drive.start(sequence(2 * BLOCK, 40))
    drive.go(2)
    assert first.is_published
    first.is_published = False
    if someone_waits:
        drive.add(sequence(3 * BLOCK))
    schedule = drive.scheduler.schedule(lambda seq_index: True)
    assert (first.is_published, len(schedule.fetched)) == (someone_waits, someone_waits)
    drive.scheduler.publish_prompts()
    assert first.is_published
