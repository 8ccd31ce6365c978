"""Layers with a sliding window are on the device alone: the same bits as with their copies on the host."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.decoding.kv_cache import sizing
from hiscore.decoding.worker import worker as worker_module
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import CONTEXT, build, checkpoint, prompt
from tests.support.late_copies import LateCopies
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models

FEW = (160, 192)
# Longer than a buffer, and shorter; both longer than a window, and neither ends with a page.
LONG, SHORT = 350, 41
# Of four layers: windows in every other one, in all but every third, in all.
HOST_LAYERS = {"gemma2": 2, "gemma3": 1, "gpt-oss": 2, "mistral": 0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))


def outputs(worker: CacheWorker, whole: bool) -> list[torch.Tensor]:
    """Logits of prompts and steps of sequences that are preempted, spilled and come back; the rest is poison."""
    driver = Driver(LateCopies(5).install(worker))
    long, first = driver.admit(prompt(LONG), CONTEXT - LONG, whole=whole)
    short, second = driver.admit(prompt(SHORT, seed=1), 60, whole=whole)
    found = [first, second, driver.step([long, short], fed=[3, 4])]
    for stays in (False, True):
        # Both are preempted, and change places in the tables.
        sequences = [driver.leave(each, preempt=True) for each in (long, short)]
        short, long = (driver.resume(replace_whole(each, whole and stays)) for each in reversed(sequences))
        found += [driver.step([short, long], fed=[5, 6]) for _ in range(3)]
    driver.leave(long)
    third, last = driver.admit(prompt(LONG - 60, seed=2), 40)
    return [*found, last, driver.step([short, third], fed=[7, 8])]


def replace_whole(sequence: Any, whole: bool) -> Any:
    sequence.whole = whole
    return sequence


@pytest.mark.parametrize("selector", ["dense", "auto", "quest"])
@pytest.mark.parametrize("family", HOST_LAYERS)
def test_without_copies_on_the_host_no_bit_changes(
    path: Any, family: str, selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = selector == "auto"
    with monkeypatch.context() as patched:
        patched.setattr(sizing, "_device_only", lambda *model: frozenset())
        copied = build(path(family), selector, *FEW)
    alone = build(path(family), selector, *FEW)
    layers = copied._cache.shape.layers
    assert (len(copied._cache.host_kv), len(alone._cache.host_kv)) == (layers, HOST_LAYERS[family])
    expected, found = outputs(copied, whole), outputs(alone, whole)
    assert all(each.isfinite().all() for each in expected)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_what_is_nowhere_else_must_not_be_overwritten(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a restored sequence whose dense layers are filled from staging, where they are not."""
    right, wrong = worker_module.index_from_staging, []

    def fill(model: Any, ops: Any, admission: Any) -> None:
        wrong.append(admission.first_token)
        right(model, ops, replace(admission, first_token=None))

    monkeypatch.setattr(worker_module, "index_from_staging", fill)
    found = outputs(build(path("gemma2"), "auto", *FEW), True)
    assert any(each is not None for each in wrong)
    assert not all(each.isfinite().all() for each in found)


def test_prompts_that_are_to_be_found_keep_their_copies(path: Any) -> None:
    model = sizing.ModelShape(2, 2, 32, (5, None, 5, None), CONTEXT)
    memory = sizing.MemoryBudget(2**31, 2**31, 4)
    for caching, device_only in ((False, {0, 2}), (True, set())):
        settings = sizing.CacheSettings(selector="quest", prefix_cache=caching)
        shape, _ = sizing.plan_cache(settings, model, memory, torch.float32, 24)
        assert shape.device_only == device_only
