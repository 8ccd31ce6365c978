"""Prefixes under layers that keep a window only: the same bits as without, from where a window is still there."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.decode_client import serving
from tests.support.decoding import build, prompt
from tests.support.windows import FEW, WINDOW, checkpoints
from tests.unit.decoding.worker.test_prefix import LATER, OTHER, START, Seen, run

pytestmark = pytest.mark.slow  # whole models

# Shares two blocks of 32 with START: the window before their end is one that START has left behind.
MIDDLE = np.concatenate((START[:70], prompt(10, seed=3)))
SELECTORS = ["dense", "auto", "quest", "exact"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(checkpoints(lambda: tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def make(path: Callable[[str], Path]) -> Callable[..., Seen]:
    def get(family: str, selector: str, caching: bool = True, windows: int = 0, **options: Any) -> Seen:
        """windows: blocks of their pool; 0: enough."""
        directory = path(f"{family}@{WINDOW}")
        worker = build(directory, selector, *FEW, chunk=64, prefix_cache=caching, **options)
        if windows:
            pages = windows * worker.cache_config.block_pages
            worker.cache_config = replace(worker.cache_config, window_pages=pages)
        return Seen(worker)

    return get


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "mistral"])
def test_a_prefix_that_was_found_changes_no_bit(make: Any, family: str, selector: str) -> None:
    """As in `test_prefix`; the cache has no layer as a whole that has a window."""
    seen = {caching: make(family, selector, caching) for caching in (True, False)}
    for each in seen.values():
        assert each.worker._cache.windowed
        with serving(each.worker) as client:
            run(client, START, OTHER, LATER, MIDDLE)
    assert (seen[True].prefilled, seen[False].prefilled) == (520 - 128 - 64, 520)
    if family != "mistral":  # all of its layers have a window
        # Under auto the others stay on the device too.
        assert seen[True].fetched == (128 + 64) * (selector in ("quest", "exact"))
    with_, without = (seen[caching].logits for caching in (True, False))
    assert len(with_) == 4
    assert torch.stack(with_).isfinite().all()
    assert torch.equal(torch.stack(with_), torch.stack(without))


@pytest.mark.parametrize("again", [LATER, MIDDLE])
@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_what_is_found_is_what_is_used(make: Any, family: str, again: np.ndarray) -> None:
    """The control: what windows were kept is changed, and shows."""
    logits = []
    for spoiled in (False, True):
        seen = make(family, "dense")
        with serving(seen.worker) as client:
            run(client, START)
            if spoiled:
                with torch.inference_mode():
                    seen.worker._cache.window_kv += 1
            run(client, again)
        logits.append(seen.logits[1])
    assert not torch.equal(*logits)


@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_where_the_window_is_gone_the_prefix_is_shorter(make: Any, family: str) -> None:
    """A ring takes three blocks. With four, START leaves its end and little else; OTHER takes all of it."""
    alone = make(family, "dense", caching=False)
    with serving(alone.worker) as client:
        expected = [run(client, each)[0].tokens for each in (START, MIDDLE, LATER, OTHER, LATER)]
    seen = make(family, "dense", windows=4)
    found, prefilled = [], []
    with serving(seen.worker) as client:
        for each in (START, MIDDLE, LATER, OTHER, LATER):
            before = seen.prefilled
            found.append(run(client, each)[0].tokens)
            prefilled.append(seen.prefilled - before)
    assert found == expected
    # MIDDLE takes the window before START's end, so that LATER goes on where MIDDLE ended.
    assert prefilled == [150, 80, 140 - 64, 150, 140]


@pytest.mark.parametrize("selector", ["dense", "auto"])
def test_a_conversation_prefills_what_is_new(make: Any, selector: str) -> None:
    """Each turn goes on from the end of the one before, answer included."""
    seen, text = make("gemma3", selector), prompt(150)
    with serving(seen.worker) as client:
        for turn in range(4):
            before = seen.prefilled
            (outcome,) = run(client, text, max_tokens=50)
            assert seen.prefilled - before <= (150 if turn == 0 else 12 + 32)
            text = np.concatenate((text, np.array(outcome.tokens, np.int32), prompt(12, seed=turn)))
        assert client.stats.prefix_hits == 3


@pytest.mark.parametrize("windows", [6, 30])
def test_many_that_begin_alike_share_few_windows(make: Any, windows: int) -> None:
    """They share blocks, leave them, are preempted and start over: all have the tokens that they have alone."""
    beginnings = [prompt(100, seed=seed) for seed in range(2)]
    random = np.random.default_rng(4)
    calls = []
    for seed in range(8):
        shared = beginnings[seed % 2][: int(random.integers(30, 100))]
        calls.append(
            {"tokens": np.concatenate((shared, prompt(5, seed=seed))), "max_tokens": 40, "seed": seed}
        )

    def tokens(seen: Seen, at_once: int) -> list[list[int]]:
        found = []
        with serving(seen.worker) as client:
            for first in range(0, len(calls), at_once):
                outcomes = [client.submit(**each) for each in calls[first : first + at_once]]
                client.wait(outcomes)
                found += [outcome.tokens for outcome in outcomes]
        assert client.failures == []
        return found

    expected = tokens(make("gpt-oss", "dense", caching=False), 1)
    seen = make("gpt-oss", "dense", windows=windows)
    assert tokens(seen, len(calls)) == expected
    if windows == 30:
        assert seen.prefilled < sum(len(each["tokens"]) for each in calls) - 100
