"""Prefixes found on the host: what follows has the same bits as without, and only that is prefilled."""

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

# Family, tokens selected, tokens in the buffer.
SETTINGS = {
    "dense": ("llama-biased", 16, 24),
    "quest": ("qwen3", 96, 96),
    "exact": ("llama-biased", 16, 24),
    "dsa": ("glm-shared", 16, 24),
}


class Seen:
    """A worker that records what it prefills, and the logits after each prompt."""

    def __init__(self, worker: CacheWorker) -> None:
        self.worker, self.prefilled, self.logits = worker, 0, list[Tensor]()
        prefill, model = worker.prefill, worker._model.prefill

        def count(chunks: Any, sampling: Any) -> Any:
            self.prefilled += sum(len(chunk.tokens) for chunk in chunks)
            return prefill(chunks, sampling)

        def keep(chunks: Any) -> Tensor:
            logits = model(chunks)
            self.logits += list(logits.clone())
            return logits

        worker.prefill, worker._model.prefill = count, keep  # type: ignore[method-assign]


def run(client: Client, *prompts: np.ndarray, **options: Any) -> list[Outcome]:
    outcomes = []
    for each in prompts:
        outcomes.append(client.submit(each, options.pop("max_tokens", 6), **options))
        client.wait(outcomes)
    assert [outcome.end for outcome in outcomes] == ["length"] * len(outcomes)
    return outcomes


@pytest.fixture(scope="module")
def make(path: Callable[[str], Path]) -> Callable[..., Seen]:
    def get(selector: str, caching: bool = True, chunk: int = 64) -> Seen:
        family, top_k, buffer = SETTINGS[selector]
        worker = build(path(family), selector, top_k, buffer, chunk=chunk, prefix_cache=caching)
        return Seen(worker)

    return get


START, OTHER = prompt(150), prompt(150, seed=1)
LATER = np.concatenate((START[:130], prompt(10, seed=2)))  # shares four blocks of 32


@pytest.mark.parametrize("selector", SETTINGS)
def test_a_prefix_that_was_found_changes_no_bit(make: Any, selector: str) -> None:
    """With forwards of 64 tokens, which cut the prompts where the cache does.

    Elsewhere a product on the CPU may add up in another order, as it may with other prompts in a forward.
    """
    seen = {caching: make(selector, caching) for caching in (True, False)}
    for each in seen.values():
        with serving(each.worker) as client:
            run(client, START, OTHER, LATER)
    assert (seen[True].prefilled, seen[False].prefilled) == (440 - 128, 440)
    with_, without = (seen[caching].logits for caching in (True, False))
    assert len(with_) == 3
    assert torch.equal(torch.stack(with_), torch.stack(without))
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
                with torch.inference_mode():
                    seen.worker._cache.host_kv[0] += 1
                    seen.worker._cache.dense_kv[:1] += 1
            run(client, LATER)
        logits.append(seen.logits[1])
    assert not torch.equal(*logits)


@pytest.mark.parametrize("selector", SETTINGS)
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
    assert seen.prefilled == 150 + 140 - 128


@pytest.mark.parametrize("selector", ["quest", "dsa"])
def test_a_conversation_prefills_what_is_new(make: Any, selector: str) -> None:
    """What was generated is found as well; it was computed step by step, so that bits may differ there."""
    seen, text = make(selector), prompt(40)
    with serving(seen.worker) as client:
        for turn in range(5):
            before = seen.prefilled
            (outcome,) = run(client, text, max_tokens=20)
            assert seen.prefilled - before <= (40 if turn == 0 else 20 + 12 + 32)
            text = np.concatenate((text, np.array(outcome.tokens, np.int32), prompt(12, seed=turn)))
        assert client.stats.prefix_hits == 4


def test_a_salt_keeps_callers_apart_and_so_does_what_they_attend_to(make: Any) -> None:
    seen = make("quest")
    with serving(seen.worker) as client:
        for salt, sparse, new in (("a", True, 150), ("b", True, 150), ("a", False, 150), ("a", True, 22)):
            before = seen.prefilled
            run(client, START, cache_salt=salt, sparse=sparse)
            assert seen.prefilled - before == new
