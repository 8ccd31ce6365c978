"""Layers with a window keep it alone, on the device: the same bits as with everything, there and on the host."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.decoding.memory import sizing
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.worker import worker as worker_module
from hiscore.settings import PrefixCaching
from tests.support.decode_truth import DecodeTruth
from tests.support.decoding import CONTEXT, build
from tests.support.tiers import first_of
from tests.support.windows import FEW, HOST_LAYERS, WINDOW, checkpoints, outputs
from tests.unit.decoding.worker.test_worker_engine import late
from tests.unit.decoding.worker.test_worker_truth import SINGLE, WRONG, largest_error

pytestmark = pytest.mark.slow  # whole models

FAMILIES = [*HOST_LAYERS, f"gemma3@{WINDOW}", f"gpt-oss@{WINDOW}", f"mistral@{WINDOW}"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(checkpoints(lambda: tmp_path_factory.mktemp("checkpoint")))


@pytest.mark.parametrize("selector", first_of("dense", "auto", "quest"))
@pytest.mark.parametrize("family", FAMILIES)
def test_where_a_window_is_kept_no_bit_changes(
    path: Any, family: str, selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = selector == "auto"
    with monkeypatch.context() as patched:
        patched.setattr(ModelShape, "windowed", frozenset())
        copied = build(path(family), selector, *FEW)
    alone = build(path(family), selector, *FEW)
    layers, kept = copied._cache.shape.layers, HOST_LAYERS[family.partition("@")[0]]
    assert (len(copied._cache.host_kv), len(alone._cache.host_kv)) == (layers, kept)
    assert (len(alone._cache.window_kv), len(alone._model.staging)) == (layers - kept, kept)
    expected, found = outputs(late(copied, 5), whole), outputs(late(alone, 5), whole)
    assert all(each.isfinite().all() for each in expected)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


@pytest.mark.parametrize("selector", ["dense", "auto", "exact"])
@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "mistral"])
def test_beyond_a_window_tokens_are_transformers(path: Any, family: str, selector: str) -> None:
    """Sequences of five windows, of one and less; what a selector has is enough for all of them."""
    directory = path(f"{family}@{WINDOW}")
    worker = build(directory, selector, 224, 256, dense_layers=4)
    # Whole blocks of 32.
    assert worker._cache.shape.window_ring * worker.cache_config.page_size == 64
    error, _ = largest_error(worker, DecodeTruth(directory, torch.float32), lengths=(200, 7, 33))
    assert error < SINGLE


@pytest.mark.parametrize("selector", ["dense", "auto"])
@pytest.mark.exhaustive
def test_control_a_ring_too_small_is_seen(path: Any, selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = path(f"gemma3@{WINDOW}")
    monkeypatch.setattr(ModelShape, "longest_window", WINDOW - 32)
    worker = build(directory, selector, 224, 256)
    assert worker._cache.shape.window_ring == 1
    error, _ = largest_error(worker, DecodeTruth(directory, torch.float32), lengths=(200, 7, 33))
    assert error > WRONG


@pytest.mark.parametrize("mutation", ["kept nothing", "kept too late"])
@pytest.mark.exhaustive
def test_control_a_prompt_that_does_not_reach_its_window_is_seen(
    path: Any, mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = worker_module.keep_windows

    def kept(ops: Any, shape: Any, chunks: Any, staging: Any) -> None:
        if mutation == "kept too late":
            late = [replace(each, start=each.start + 1, tokens=each.tokens[:-1]) for each in chunks]
            right(ops, shape, late, staging)

    monkeypatch.setattr(worker_module, "keep_windows", kept)
    directory = path(f"gemma3@{WINDOW}")
    error, _ = largest_error(build(directory, "dense"), DecodeTruth(directory, torch.float32))
    assert error > WRONG


@pytest.mark.parametrize("prefix_cache", [False, "auto", True])
@pytest.mark.parametrize(("window", "blocks"), [(1, 1), (5, 1), (33, 2), (64, 2), (65, 3), (66, 3)])
def test_whole_blocks_hold_a_window_whatever_is_kept_of_prompts(
    window: int, blocks: int, prefix_cache: PrefixCaching
) -> None:
    """In blocks of 32: a token sees window - 1 of those before."""
    model = ModelShape(2, 2, 32, (window, None, window, None), CONTEXT)
    memory = sizing.MemoryBudget(2**31, 2**31, 4)
    settings = sizing.CacheSettings(selector="quest", prefix_cache=prefix_cache)
    shape, cache_config = sizing.plan_cache(settings, model, memory, torch.float32, 24)
    assert shape.windowed == {0, 2}
    assert not cache_config.prefix_cache
    assert cache_config.window_ring == blocks * cache_config.block_pages
    assert cache_config.window_pages % cache_config.block_pages == 0
