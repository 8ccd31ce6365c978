"""Prefixes found on device or host: what follows has the same bits as without, and only that is prefilled."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decode_client import Client, Outcome, serving
from tests.support.decoding import build, prompt
from tests.support.tiers import first_of

# Family, tokens selected, tokens in the buffer.
SETTINGS = {
    "dense": ("llama-biased", 16, 24),
    "quest": ("qwen3", 96, 96),
    "exact": ("llama-biased", 16, 24),
    "dsa": ("glm-shared", 16, 24),
    "auto": ("qwen3", 96, 96),
}


class Seen:
    """A worker that records what it prefills, and the logits after each prompt."""

    def __init__(self, worker: CacheWorker) -> None:
        self.worker, self.prefilled, self.fetched, self.logits = worker, 0, 0, list[Tensor]()
        prefill, model, restore = worker.prefill, worker._model.prefill, worker._ops.restore_prompt

        def count_fetched(staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
            self.fetched += len(slots)
            restore(staging, slots, host_pages)

        def count(chunks: Any, sampling: Any) -> Any:
            self.prefilled += sum(len(chunk.tokens) for chunk in chunks)
            return prefill(chunks, sampling)

        def keep(chunks: Any) -> Tensor:
            logits = model(chunks)
            self.logits += list(logits.clone())
            return logits

        worker.prefill, worker._model.prefill = count, keep  # type: ignore[method-assign]
        worker._ops.restore_prompt = count_fetched  # type: ignore[method-assign]


def run(client: Client, *prompts: np.ndarray, **options: Any) -> list[Outcome]:
    outcomes = []
    for each in prompts:
        outcomes.append(client.submit(each, options.pop("max_tokens", 6), **options))
        client.wait(outcomes)
    assert [outcome.end for outcome in outcomes] == ["length"] * len(outcomes)
    return outcomes


def maker(path: Callable[[str], Path], **on: Any) -> Callable[..., Seen]:
    def get(selector: str, caching: bool = True) -> Seen:
        family, top_k, buffer = SETTINGS[selector]
        return Seen(build(path(family), selector, top_k, buffer, chunk=64, prefix_cache=caching, **on))

    return get


@pytest.fixture(scope="module")
def make(path: Callable[[str], Path]) -> Callable[..., Seen]:
    return maker(path)


def spoil(kept: Tensor) -> None:
    """Change what is kept. A worker's queues wait for no other CUDA stream."""
    if kept.is_cuda:
        torch.cuda.synchronize()
    with torch.inference_mode():
        kept += 1
    if kept.is_cuda:
        torch.cuda.synchronize()


START, OTHER = prompt(150), prompt(150, seed=1)
LATER = np.concatenate((START[:130], prompt(10, seed=2)))  # shares four blocks of 32


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [6, 1])
@pytest.mark.parametrize("selector", SETTINGS)
def test_a_prefix_that_was_found_changes_no_bit(make: Any, selector: str, max_tokens: int) -> None:
    """With forwards of 64 tokens, which cut the prompts where the cache does.

    Elsewhere a product on the CPU may add up in another order, as it may with other prompts in a forward.
    """
    seen, tokens = {caching: make(selector, caching) for caching in (True, False)}, []
    for each in seen.values():
        with serving(each.worker) as client:
            run(client, START, max_tokens=max_tokens)
            tokens.append([outcome.tokens for outcome in run(client, OTHER, LATER)])
    assert (seen[True].prefilled, seen[False].prefilled) == (440 - 128, 440)
    stays = selector in ("dense", "auto")
    assert (seen[True].fetched, seen[False].fetched) == (0 if stays else 128, 0)
    with_, without = (seen[caching].logits for caching in (True, False))
    assert len(with_) == 3
    assert torch.equal(torch.stack(with_), torch.stack(without))
    assert tokens[0] == tokens[1]  # the index of what was found as well
    # The control: the prompts are not alike.
    assert not torch.equal(without[0], without[2])


@pytest.mark.parametrize("selector", SETTINGS)
def test_what_is_found_is_what_is_used(make: Any, selector: str) -> None:
    """The control: what was kept is changed, and shows."""
    logits = []
    for spoiled in (False, True):
        seen = make(selector)
        with serving(seen.worker) as client:
            run(client, START)
            if spoiled:
                cache = seen.worker._cache
                for kept in [cache.buffer] if selector == "auto" else [cache.host_kv[0], cache.dense_kv[:1]]:
                    spoil(kept)
            run(client, LATER)
        logits.append(seen.logits[1])
    assert not torch.equal(*logits)


@pytest.mark.slow
@pytest.mark.parametrize("selector", first_of(*SETTINGS))
def test_a_prefix_that_runs_is_found_too(make: Any, selector: str) -> None:
    """While the sequence that computed it still runs, and goes on after the other has ended."""
    alone = []
    for each in (START, LATER):
        seen = make(selector, caching=False)
        with serving(seen.worker) as client:
            alone.append(run(client, each, max_tokens=60)[0].tokens)
    seen = make(selector)
    with serving(seen.worker) as client:
        first = client.submit(START, 60)
        client.hook = lambda outcome: second.append(client.submit(LATER, 60)) if not second else None
        second: list[Outcome] = []
        client.wait([first])
        client.wait(second)
        assert client.stats.cached_tokens == 128
    assert [first.tokens, second[0].tokens] == alone
    assert (first.usage, second[0].usage) == ((150, 0, 60), (140, 128, 60))
    assert seen.prefilled == 150 + 140 - 128


def converse(seen: Seen, client: Any) -> None:
    """Five turns, of which each prefills no more than what is new and an unfinished block."""
    text = prompt(40)
    for turn in range(5):
        before = seen.prefilled
        (outcome,) = run(client, text, max_tokens=20)
        assert seen.prefilled - before <= (40 if turn == 0 else 20 + 12 + 32)
        text = np.concatenate((text, np.array(outcome.tokens, np.int32), prompt(12, seed=turn)))


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["quest", "dsa"])
def test_a_conversation_prefills_what_is_new(make: Any, selector: str) -> None:
    """What was generated is found as well; it was computed step by step, so that bits may differ there."""
    seen = make(selector)
    with serving(seen.worker) as client:
        converse(seen, client)
        assert client.stats.prefix_hits == 4


def leave(client: Client) -> None:
    """Wait until those that have ended have left their pages, which they hold for an iteration more."""
    while not client.engine._scheduler.idle:
        time.sleep(0.001)


def leave_and_evict(client: Client, pages: int) -> None:
    """Let others have pages that stay on the device, all but so many; they give them back."""
    leave(client)
    device = client.engine._scheduler.blocks.device
    device.free(device.allocate(device.num_free - pages))


@pytest.mark.slow
@pytest.mark.parametrize("stay", [0, 1, 3, 4])
def test_what_stays_on_the_device_has_the_bits_of_what_is_copied_from_the_host(make: Any, stay: int) -> None:
    """With as much of a prompt there as others have left; the control is spoiled on the device, and shows."""
    seen, spoiled = make("auto"), make("auto")
    for each in (seen, spoiled):
        with serving(each.worker) as client:
            run(client, START)
            leave_and_evict(client, stay)
            if each is spoiled:
                spoil(each.worker._cache.buffer)
            run(client, LATER)
            assert (client.stats.cached_tokens, client.stats.cached_on_device) == (128, 32 * stay)
        assert each.fetched == 128 - 32 * stay
    alone = make("auto", caching=False)
    with serving(alone.worker) as client:
        run(client, START, LATER)
    assert torch.equal(torch.stack(seen.logits), torch.stack(alone.logits))
    assert torch.equal(spoiled.logits[1], alone.logits[1]) == (stay == 0)


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", [False, True])
def test_what_was_generated_stays_on_the_device_in_all_layers(make: Any, spoiled: bool) -> None:
    """Dense layers have it by host page alone. The control spoils that, of pages that were generated."""
    outputs = []
    for stay in (None, 0):
        seen, text = make("auto"), prompt(40)
        with serving(seen.worker) as client:
            (outcome,) = run(client, text, max_tokens=60)
            text = np.concatenate((text, np.array(outcome.tokens, np.int32), prompt(12, seed=1)))
            leave(client)
            if stay is not None:
                leave_and_evict(client, stay)
            elif spoiled:
                spoil(seen.worker._cache.dense_kv)
            run(client, text)
        assert seen.fetched == (0 if stay is None else 96)
        outputs.append(seen.logits[1])
    assert torch.equal(*outputs) != spoiled


@pytest.mark.slow
def test_one_that_took_pages_over_may_be_spilled(make: Any) -> None:
    """It goes on from its host pages, with an index of its own: with the tokens that it has without a cache."""
    tokens = []
    for caching in (False, True):
        seen = make("auto", caching)
        with serving(seen.worker) as client:
            run(client, START)

            def spill(outcome: Outcome, client: Client = client) -> None:
                if len(outcome.tokens) == 20:
                    scheduler = client.engine._scheduler
                    assert scheduler._reclaimer.spill(scheduler.queues.running)

            client.hook = spill
            tokens.append(run(client, LATER, max_tokens=60)[0].tokens)
            assert client.stats.preemptions == 1
            assert client.stats.cached_on_device == 128 * caching
    assert tokens[0] == tokens[1]


def test_a_conversation_stays_on_the_device(make: Any) -> None:
    """Nothing of it is copied from the host, turn by turn."""
    seen = make("auto")
    with serving(seen.worker) as client:
        converse(seen, client)
        stats = client.stats
        assert (stats.prefix_hits, stats.cached_on_device) == (4, stats.cached_tokens)
    assert seen.fetched == 0


def test_a_salt_keeps_callers_apart_and_so_does_what_they_attend_to(make: Any) -> None:
    seen = make("quest")
    with serving(seen.worker) as client:
        for salt, sparse, new in (("a", True, 150), ("b", True, 150), ("a", False, 150), ("a", True, 22)):
            before = seen.prefilled
            run(client, START, cache_salt=salt, sparse=sparse)
            assert seen.prefilled - before == new
