"""A prompt's parts are offloaded while the next one is prefilled: what waits for them, and what does not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import NO_PAGES
from hiscore.decoding.worker import worker as worker_module
from tests.support.decoding import build, prompt
from tests.support.late_copies import LateCopies
from tests.support.worker_driver import Driver, host_rows

pytestmark = pytest.mark.slow  # whole models

# Selector: family, tokens selected, tokens in the buffer. Parts of 23 tokens end in the middle of all pages but
# those of one token.
SETTINGS = {"quest": ("gemma2", 96, 128), "exact": ("llama", 16, 24)}
CHUNK, LENGTH = 23, 100


def driver_of(path: Any, selector: str, late: bool = True) -> Driver:
    family, top_k, buffer = SETTINGS[selector]
    worker = build(path(family), selector, top_k, buffer, chunk=CHUNK)
    if late:
        LateCopies(polls=1_000).install(worker)
    return Driver(worker)


def on_the_host(driver: Driver, seq_index: int) -> Tensor:
    """[L, LENGTH, C, H, D], once all has landed."""
    driver.drain(seq_index)
    return host_rows(driver.worker, driver.sequences[seq_index], torch.arange(LENGTH))


def two(driver: Driver, reuse: bool) -> list[Tensor]:
    """Two prompts one after the other. reuse: in the same staging pages, without asking whether those are free."""
    seq_indices, staging = [], []
    for seed in range(2):
        seq_index, _ = driver.admit(prompt(LENGTH, seed=seed), 20)
        seq_indices.append(seq_index)
        staging.append(driver.sequences[seq_index].held.staging_pages)
        if reuse:
            driver.blocks.free_staging(driver.sequences[seq_index])
    assert not reuse or np.isin(*staging).all()
    return [on_the_host(driver, seq_index) for seq_index in seq_indices]


@pytest.mark.parametrize("selector", SETTINGS)
def test_no_forward_waits_for_them(path: Any, selector: str) -> None:
    driver = driver_of(path, selector)
    schedule = driver.worker._schedule
    seq_index, _ = driver.admit(prompt(LENGTH), 20)
    # Of quest's pages of 32 tokens, the first part fills none, nor does the fourth.
    assert len(driver.worker._queues.in_flight) == {"quest": 3, "exact": 5}[selector]  # type: ignore[attr-defined]
    assert schedule.offloaded_tokens == 0
    assert schedule.lag()[seq_index] == LENGTH
    found = on_the_host(driver, seq_index)
    assert schedule.offloaded_tokens == LENGTH
    at_once = driver_of(path, selector, late=False)
    assert torch.equal(found, on_the_host(at_once, at_once.admit(prompt(LENGTH), 20)[0]))


@pytest.mark.parametrize("selector", SETTINGS)
def test_who_gets_their_staging_pages_waits(
    path: Any, selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = two(driver_of(path, selector, late=False), reuse=False)
    for found, right in zip(two(driver_of(path, selector), reuse=True), expected, strict=True):
        assert torch.equal(found, right)

    def none_new(chunk: Any, start: int, end: int, only_new: bool = False) -> Any:
        return chunk.staging_pages[:0] if only_new else pages(chunk, start, end)

    pages = worker_module._staging_pages
    monkeypatch.setattr(worker_module, "_staging_pages", none_new)
    found, _ = two(driver_of(path, selector), reuse=True)
    assert not torch.equal(found, expected[0])


def test_a_copy_that_fails_leaves_those_before_it_under_way(path: Any) -> None:
    """A failure when a prompt's second part is to be copied, for example for lack of device memory."""
    driver = driver_of(path, "exact")
    schedule = driver.worker._schedule

    class SecondFails(LateCopies):
        copies = 0

        def copy(self, launch: Callable[[], None]) -> None:
            self.copies += 1
            if self.copies == 2:
                raise MemoryError
            super().copy(launch)

    SecondFails(polls=1_000).install(driver.worker)
    seq_index, _ = driver.admit(prompt(LENGTH), 20)
    assert [type(error) for error in driver.failures] == [MemoryError]
    assert not schedule.drained(seq_index)
    assert schedule.lag()[seq_index] >= CHUNK
    with pytest.raises(RuntimeError, match="in flight"):
        schedule.release(seq_index)
    driver.drain(seq_index)
    assert schedule.offloaded_tokens == LENGTH - CHUNK  # all parts but the second
    driver.worker.release(seq_index, NO_PAGES, NO_PAGES)
    assert schedule.lag()[seq_index] == 0
    # The seq_index, its pages and its staging serve the next one.
    other = Driver(driver.worker)
    found = on_the_host(other, other.admit(prompt(LENGTH, seed=1), 20)[0])
    at_once = driver_of(path, "exact", late=False)
    assert torch.equal(found, on_the_host(at_once, at_once.admit(prompt(LENGTH, seed=1), 20)[0]))
