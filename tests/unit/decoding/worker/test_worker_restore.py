"""Sequences that are copied back from the host beside the steps of others: late, and with the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.decoding.pools import prompt_pages
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decode_client import serving
from tests.support.decoding import build, prompt
from tests.support.late_copies import LateCopies
from tests.support.tiers import first_of
from tests.support.worker_driver import Driver
from tests.unit.decoding.worker.test_prefix import LATER, OTHER, SETTINGS, START, maker, run

Of = Callable[[str], Path]
"""A checkpoint's path, by its family."""
POLLS = 50
"""How often an event is asked for before its copy runs; alone, what reads a copy is launched without asking."""
BESIDE = ["quest", "exact", "dsa"]  # dense layers keep what they have


def resumed(path: Of, selector: str, late: LateCopies | None) -> Tensor:
    """Logits of a sequence that is preempted, and resumed when another has used its staging pages."""
    family, top_k, buffer = SETTINGS[selector]
    worker = build(path(family), selector, top_k, buffer)
    if late:
        late.install(worker)
    driver = Driver(worker)
    seq_index, _ = driver.admit(prompt(150), 60)
    for token in range(3):
        driver.step([seq_index], fed=[token])
    sequence = driver.leave(seq_index, preempt=True)
    other, _ = driver.admit(prompt(150, seed=1), 60)
    driver.drain(other)
    driver.step([other], fed=[3])
    seq_index = driver.resume(sequence)
    return torch.stack([driver.step([other, seq_index], fed=[token, token])[1] for token in range(5)])


@pytest.mark.slow
@pytest.mark.parametrize("selector", SETTINGS)
def test_a_late_restore_changes_no_bit(path: Of, selector: str) -> None:
    at_once = resumed(path, selector, None)
    assert at_once.isfinite().all()
    assert torch.equal(at_once, resumed(path, selector, LateCopies(POLLS)))


@pytest.mark.slow
@pytest.mark.parametrize("selector", BESIDE)
@pytest.mark.exhaustive
def test_an_admission_that_does_not_wait_for_its_restore_is_seen(path: Of, selector: str) -> None:
    deaf = LateCopies(POLLS, deaf_to=Queue.RESTORE)
    assert not torch.equal(resumed(path, selector, None), resumed(path, selector, deaf))


def found(path: Of, selector: str, late: LateCopies | None) -> list[Tensor]:
    """Logits after three prompts, the last of which begins as the first."""
    seen = maker(path)(selector)
    if late:
        late.install(seen.worker)
    with serving(seen.worker) as client:
        run(client, START, OTHER, LATER)
        assert client.stats.cached_tokens == 128
    return seen.logits


@pytest.mark.slow
@pytest.mark.parametrize("selector", SETTINGS)
def test_a_prefix_that_comes_late_changes_no_bit(path: Of, selector: str) -> None:
    logits = [found(path, selector, late) for late in (None, LateCopies(POLLS))]
    assert torch.equal(*map(torch.stack, logits))


@pytest.mark.slow
@pytest.mark.parametrize("selector", BESIDE)
@pytest.mark.exhaustive
def test_a_prefill_that_does_not_wait_for_its_prefix_is_seen(path: Of, selector: str) -> None:
    *_, right = found(path, selector, None)
    *_, wrong = found(path, selector, LateCopies(POLLS, deaf_to=Queue.RESTORE))
    assert not torch.equal(right, wrong)


SELECTING = {**{name: SETTINGS[name] for name in BESIDE}, "auto": SETTINGS["quest"]}


def interrupted(
    path: Of, selector: str, alone: bool, length: int = 300, **on: Any
) -> tuple[Tensor, list[int]]:
    """Logits of a sequence that selects, is preempted and goes on; and how many tokens were copied back at a time.

    alone: its index is known to be complete.
    """
    family, top_k, buffer = SELECTING[selector]
    worker, copied = build(path(family), selector, top_k, buffer, **on), []
    restore = worker._ops.restore_prompt

    def count_and_restore(staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        copied.append(len(slots))
        restore(staging, slots, host_pages)

    worker._ops.restore_prompt = count_and_restore  # type: ignore[method-assign]
    driver = Driver(worker)
    seq_index, _ = driver.admit(prompt(length), 60)
    found = []
    for times in range(2):
        found += [driver.step([seq_index], fed=[token]) for token in range(3, 5 + times)]
        sequence = driver.leave(seq_index, preempt=True)
        other, _ = driver.admit(prompt(250, seed=1), 60)
        driver.step([other], fed=[3])
        driver.leave(other)
        sequence.has_index = alone
        seq_index = driver.resume(sequence)
    # Past the next page's beginning.
    found += [driver.step([seq_index], fed=[token]) for token in range(3, 40)]
    return torch.cat(found).cpu(), copied


@pytest.mark.parametrize("length", first_of(320 - 3, 320 - 2, 300, others=pytest.mark.slow))
@pytest.mark.parametrize("selector", SELECTING)
def test_one_that_selects_goes_on_with_its_buffer_alone(path: Any, selector: str, length: int) -> None:
    """With the bits of one that comes back as a whole; what it had on the device is poison by then."""
    if length != 300 and selector in ("exact", "dsa"):
        pytest.skip("pages of one token begin anywhere")
    whole, all_tokens = interrupted(path, selector, alone=False, length=length)
    found, copied = interrupted(path, selector, alone=True, length=length)
    assert found.isfinite().all()
    assert torch.equal(found, whole)
    assert all_tokens == [length + 2, length + 5]
    assert max(copied) <= SELECTING[selector][2] + 2 * 32 < min(all_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("selector", first_of(*SELECTING))
@pytest.mark.exhaustive
def test_one_that_has_other_pages_is_seen(path: Any, selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = prompt_pages.initial_pages

    def earlier(*sizes: int) -> Any:
        pages, places = right(*sizes)
        return pages - (pages > 1), places

    found, _ = interrupted(path, selector, alone=True)
    monkeypatch.setattr(prompt_pages, "initial_pages", earlier)
    wrong, _ = interrupted(path, selector, alone=True)
    assert not torch.equal(found, wrong)


class LateIndex(LateCopies):
    """Tokens are in staging at once, and only the keys that select among them come late."""

    def install(self, worker: CacheWorker) -> CacheWorker:
        at_once = worker._ops.restore_prompt
        super().install(worker)
        worker._ops.restore_prompt = at_once  # type: ignore[method-assign]
        return worker


@pytest.mark.slow
@pytest.mark.parametrize("deaf_to", [None, Queue.RESTORE])
@pytest.mark.exhaustive
def test_a_prefill_that_does_not_wait_for_the_index_is_seen(path: Of, deaf_to: Queue | None) -> None:
    *_, right = found(path, "dsa", None)
    *_, late = found(path, "dsa", LateIndex(POLLS, deaf_to))
    assert torch.equal(right, late) == (deaf_to is None)
