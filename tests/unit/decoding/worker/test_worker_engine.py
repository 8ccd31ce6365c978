"""The engine over real workers: every sequence gets the tokens it would get alone, whatever else runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.errors import Code, RequestError
from tests.support import decode_cache
from tests.support.decode_client import Client, Outcome, serving
from tests.support.decoding import prompt
from tests.support.late_copies import LateCopies
from tests.support.tiers import first_of
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models

ROWS = ["dense", *first_of("dsa", "quest", "exact")]
Call = dict[str, Any]
COUNT = 16


@pytest.fixture(scope="module")
def alone(workers: Callable[..., CacheWorker]) -> Callable[[str, int], tuple[list[Call], list[list[int]]]]:
    """Calls of all sorts, and the tokens of each when nothing else runs; by selector and number."""

    @cache
    def get(selector: str, count: int) -> tuple[list[Call], list[list[int]]]:
        calls = [call(i) for i in range(count)]
        return calls, tokens_alone(workers(selector), calls)

    return get


def tokens_alone(worker: CacheWorker, calls: Sequence[Call]) -> list[list[int]]:
    tokens = []
    with serving(worker) as client:
        for each in calls:
            client.wait([outcome := client.submit(**each)])
            tokens.append(outcome.tokens)
    assert [len(each) for each in tokens] == [each["max_tokens"] for each in calls]
    return tokens


def call(number: int) -> Call:
    """A random call: short or long, greedy or sampled, now and then one that attends to everything."""
    draw = np.random.default_rng(number).integers
    return {
        "tokens": prompt(int(draw(1, 120 if number % 4 == 0 else 40)), seed=number),
        "max_tokens": int(draw(2, 20)),
        "temperature": (0.0, 0.0, 1.0)[number % 3],
        "top_k": (0, 20)[number % 2],
        "seed": number,
        "sparse": number % 5 != 3,
    }


def late(worker: CacheWorker, polls: int = 20) -> CacheWorker:
    return LateCopies(polls).install(worker)


def crowd(worker: CacheWorker, calls: Sequence[Call], quantum: int = 0) -> tuple[list[Outcome], Client]:
    """A few calls at first, and one more with every answer: sequences join and leave at every step."""
    waiting, outcomes = list(calls), []
    with serving(worker, quantum) as client:

        def one_more(_: Outcome | None = None) -> None:
            if waiting:
                outcomes.append(client.submit(**waiting.pop(0)))

        client.hook = one_more
        one_more()
        one_more()
        while waiting:
            client.wait(outcomes[:])
        client.wait(outcomes)
    assert client.failures == []
    return outcomes, client


@pytest.mark.parametrize("selector", ROWS)
def test_join_and_leave_at_every_step_changes_no_sequence(workers: Any, alone: Any, selector: str) -> None:
    calls, expected = alone(selector, COUNT)
    outcomes, client = crowd(late(workers(selector)), calls)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert [outcome.end for outcome in outcomes] == ["length"] * len(calls)
    assert client.stats.tokens == sum(map(len, expected))
    # The control: the calls are not all alike.
    assert len({tuple(tokens) for tokens in expected}) == len(expected)


@pytest.mark.parametrize("selector", ROWS)
def test_a_preempted_sequence_goes_on_where_it_was(workers: Any, alone: Any, selector: str) -> None:
    """Without a second prefill: its rows come back from the host."""
    calls, expected = alone(selector, COUNT)
    worker = late(workers(selector, sequences=2))
    prefill, prefilled = worker.prefill, []

    def count_and_prefill(chunks: Any, sampling: Any) -> Any:
        prefilled.extend(len(chunk.tokens) for chunk in chunks)
        return prefill(chunks, sampling)

    worker.prefill = count_and_prefill
    with serving(worker, quantum=3) as client:
        outcomes = [client.submit(**each) for each in calls[:10]]
        client.wait(outcomes)
    assert [outcome.tokens for outcome in outcomes] == expected[:10]
    assert client.stats.preemptions >= 3
    assert sum(prefilled) == sum(len(each["tokens"]) for each in calls[:10])


@pytest.mark.parametrize("selector", ROWS)
def test_what_was_taken_on_the_host_is_computed_again(workers: Any, alone: Any, selector: str) -> None:
    """The host pool is full: those that are preempted lose their last pages, or all."""
    calls, expected = alone(selector, COUNT)
    short = [i for i, each in enumerate(calls) if len(each["tokens"]) <= 40]
    worker = late(workers(selector, sequences=8))
    config = worker.cache_config
    pages = ((40 + 20) // config.block_tokens + 2) * config.block_pages
    worker.cache_config = replace(config, host_pages=pages)
    step, restore, repeated, restored = worker.step, worker.restore, [], []

    def count_and_step(batch: Any) -> Any:
        repeated.append(0 if batch.forced is None else int((batch.forced >= 0).sum()))
        return step(batch)

    def count_and_restore(*args: Any) -> None:
        restored.append(args)
        restore(*args)

    worker.step, worker.restore = count_and_step, count_and_restore
    with serving(worker) as client:
        outcomes = [client.submit(**calls[i]) for i in short * 3]
        client.wait(outcomes)
    assert [outcome.tokens for outcome in outcomes] == [expected[i] for i in short * 3]
    assert len(restored) > 0


@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("selector", ROWS)
def test_what_comes_back_from_the_host_is_to_the_bit(workers: Any, selector: str, spoiled: bool) -> None:
    """spoiled: the control; what comes back is not what was kept."""
    logits = []
    for interrupted in (False, True):
        driver = Driver(workers(selector))
        seq_index, _ = driver.admit(prompt(70), 60)
        found = [driver.step([seq_index]) for _ in range(4)]
        if interrupted:
            sequence = driver.leave(seq_index, preempt=True)
            other, _ = driver.admit(prompt(50, seed=1), 60)
            driver.step([other])
            if spoiled:
                held = driver.worker._cache
                with torch.inference_mode():
                    # Dense layers are still on the device: nothing is copied.
                    (held.dense_kv if selector == "dense" else held.host_kv)[-1] += 1
            seq_index = driver.resume(sequence)
            assert seq_index != other
        found += [driver.step([seq_index]) for _ in range(4)]
        logits.append(torch.stack(found))
    assert torch.equal(*logits) is not spoiled


@pytest.mark.exhaustive
def test_poison_is_seen(workers: Any, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: when a sequence is released, all other sequences' pages are overwritten as well."""
    calls, _ = alone("exact", COUNT)
    worker, poison = workers("exact"), decode_cache.poison

    def poison_all(cache_: KVCache, *freed: torch.Tensor) -> None:
        poison(cache_, torch.arange(cache_.shape.host_pages), torch.arange(cache_.shape.device_pages))

    monkeypatch.setattr(decode_cache, "poison", poison_all)
    with serving(worker) as client:
        outcomes = [client.submit(**each) for each in calls[:8]]
        client.wait(outcomes)
    errors = [outcome.end for outcome in outcomes if isinstance(outcome.end, RequestError)]
    assert errors
    assert {error.code for error in errors} == {Code.INTERNAL}
