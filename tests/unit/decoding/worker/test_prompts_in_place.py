"""Prompts that are prefilled where they stay have the bits of those that went through a pool of their own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.memory import sizing
from hiscore.decoding.pools import prompt_pages
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import CONTEXT, build, prompt
from tests.support.late_copies import LateCopies
from tests.support.windows import FEW, LONG, outputs
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models


def in_a_pool_of_their_own(worker: Callable[[], CacheWorker], monkeypatch: pytest.MonkeyPatch) -> CacheWorker:
    with monkeypatch.context() as patched:
        patched.setattr(sizing, "prompt_pool", lambda *model: "staging")
        built = worker()
    assert built._cache.staging is None
    return built


@pytest.mark.parametrize(("selector", "where"), [("auto", "buffers"), ("dense", "dense")])
def test_in_place_has_the_bits_of_a_staging_pool(
    path: Any, selector: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> CacheWorker:
        return LateCopies(5).install(build(path("qwen3"), selector, *FEW))

    expected = outputs(in_a_pool_of_their_own(make, monkeypatch), selector == "auto")
    worker = make()
    assert worker.cache_config.prompts_in == where
    assert worker.cache_config.staging_pages == 0
    found = outputs(worker, selector == "auto")
    assert all(each.isfinite().all() for each in expected)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    # The control: tokens that are prefilled elsewhere are not there.
    right = prompt_pages.staging_pages_in
    monkeypatch.setattr(
        prompt_pages, "staging_pages_in", lambda pages, config: np.roll(right(pages, config), 1)
    )
    damaged = make()
    damaged._ops.fill_buffer = lambda *tokens: None  # type: ignore[method-assign]
    driver = Driver(damaged)
    long, first = driver.admit(prompt(LONG), CONTEXT - LONG, resident=selector == "auto")
    assert torch.equal(first, expected[0])  # a prefill finds what it wrote
    assert not torch.equal(driver.step([long], fed=[3])[0], expected[2][0])


def test_staging_is_memory_that_the_cache_has_anyway(path: Any) -> None:
    auto, dense = (build(path("qwen3"), selector, *FEW) for selector in ("auto", "dense"))
    cache_, staging = auto._cache, auto._model.staging
    assert staging.shape[0] == cache_.shape.layers
    assert cache_.buffer.data_ptr() == staging[2].data_ptr()
    assert cache_.buffer.shape[0] == cache_.shape.layers - 2
    assert dense._model.staging.data_ptr() == dense._cache.dense_kv.data_ptr()


@pytest.mark.parametrize("selector", ["quest", "exact"])
def test_where_one_number_is_not_enough_staging_is_a_pool_of_its_own(path: Any, selector: str) -> None:
    """Buffers that are for selected pages alone; pages of one token."""
    worker = build(path("qwen3"), selector, *FEW)
    assert worker.cache_config.prompts_in == "staging"
    assert worker.cache_config.staging_pages * 16 == worker.cache_config.context_length
    assert worker._cache.staging is None
