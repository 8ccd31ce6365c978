"""What one sequence lacks ends that sequence alone: the engine over real workers that run out of memory.

The memory runs out at the boundary to the device: where a copy is launched, and where a tensor is allocated.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.errors import Code, RequestError
from tests.support.decode_client import Outcome, serving
from tests.support.decoding import prompt
from tests.support.limited_memory import LimitedMemory
from tests.support.tiers import first_of
from tests.support.tiny_models import VOCABULARY

pytestmark = pytest.mark.slow  # whole models

CALLS = [{"tokens": prompt(20 + seed, seed=seed), "max_tokens": 12 + seed} for seed in range(4)]


def run(worker: CacheWorker, calls: list[dict[str, Any]]) -> tuple[list[Outcome], list[Exception]]:
    with serving(worker) as client:
        outcomes = [client.submit(**call) for call in calls]
        client.wait(outcomes)
    return outcomes, client.failures


@contextmanager
def failing(ops: Any, operation: str, at: int) -> Iterator[None]:
    """The device has no memory for one launch of an operation."""
    launch, launched = getattr(ops, operation), 0

    def launch_or_fail(*arguments: Any) -> None:
        nonlocal launched
        launched += 1
        if launched == at:
            raise torch.OutOfMemoryError("no memory")
        launch(*arguments)

    setattr(ops, operation, launch_or_fail)
    yield
    assert launched >= at
    setattr(ops, operation, launch)


@pytest.mark.parametrize("selector", ["dense", "exact"])
@pytest.mark.parametrize("chunk", first_of(8, 24, 96))
@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_failed_copy_ends_its_own_sequence(workers: Any, selector: str, chunk: int, at: int) -> None:
    """Whichever copy it is, of whichever part; the steps that run meanwhile go on."""
    worker = workers(selector, chunk=chunk)
    expected, _ = run(worker, CALLS)
    with failing(worker._ops, "offload_prompt", at):
        outcomes, failures = run(worker, CALLS)
    failed = [outcome for outcome in outcomes if isinstance(outcome.end, RequestError)]
    assert len(failed) == len(failures) == 1
    for outcome, right in zip(outcomes, expected, strict=True):
        if outcome not in failed:
            assert (outcome.end, outcome.tokens) == ("length", right.tokens)
    # Its pages and its row serve others.
    again, failures = run(worker, CALLS)
    assert [each.tokens for each in again] == [each.tokens for each in expected]
    assert failures == []


@pytest.mark.parametrize("operation", ["fill_buffer", "index_prompt"])
def test_an_admission_that_fails_ends_its_own_sequence(workers: Any, operation: str) -> None:
    worker = workers("exact")
    expected, _ = run(worker, CALLS)
    with failing(worker._ops, operation, 2):
        outcomes, failures = run(worker, CALLS)
    assert len(failures) == sum(isinstance(outcome.end, RequestError) for outcome in outcomes) == 1
    for outcome, right in zip(outcomes, expected, strict=True):
        if not isinstance(outcome.end, RequestError):
            assert (outcome.end, outcome.tokens) == ("length", right.tokens)


@pytest.mark.exhaustive
def test_the_control_a_steps_copy_that_fails_ends_all_of_its_sequences(workers: Any) -> None:
    worker = workers("exact")
    with failing(worker._ops, "offload_step", 8):
        outcomes, _ = run(worker, CALLS)
    assert sum(isinstance(outcome.end, RequestError) for outcome in outcomes) > 1


def limit_sampling(worker: CacheWorker, limit: int) -> LimitedMemory:
    """Let the device have so many bytes for a tensor while it samples."""
    memory, sample = LimitedMemory(limit), worker._sampler.sample

    def sample_within(*arguments: Any) -> Any:
        with memory:
            return sample(*arguments)

    worker._sampler.sample = sample_within  # type: ignore[method-assign]
    return memory


@pytest.mark.parametrize("limited", [True, False])
def test_a_step_that_lacks_memory_for_one_row_goes_on_without_it(workers: Any, limited: bool) -> None:
    """To count the tokens of its long prompt takes more than any row of logits."""
    calls = [{**call, "presence_penalty": 1.0} for call in CALLS]
    calls.append({"tokens": prompt(VOCABULARY + 4, seed=9), "max_tokens": 6, "frequency_penalty": 0.5})
    worker = workers("exact", sequences=5, chunk=96)
    expected, _ = run(worker, calls)
    memory = limit_sampling(worker, VOCABULARY * 8 if limited else 10**9)
    outcomes, _ = run(worker, calls)
    assert bool(memory.refused) == limited
    *others, longest = outcomes
    assert isinstance(longest.end, RequestError) == limited
    assert [each.tokens for each in others] == [each.tokens for each in expected[:-1]]
    assert [each.end for each in others] == ["length"] * len(others)


class BadGrammar:
    """Its third mask has another type than a mask has."""

    def __init__(self, bad: bool) -> None:
        self.bad, self.masks = bad, 0

    def mask(self) -> Any:
        self.masks += 1
        every = np.full(-(-VOCABULARY // 32), -1, np.int32)
        return every.astype(np.float64) if self.bad and self.masks == 3 else every

    def advance(self, token: int) -> Any:
        return self.mask()


@pytest.mark.parametrize("bad", [True, False])
def test_a_bad_mask_ends_its_own_sequence(workers: Any, bad: bool) -> None:
    worker = workers("exact")
    expected, _ = run(worker, CALLS)
    outcomes = [Outcome() for _ in CALLS]
    with serving(worker) as client:
        for place, (call, outcome) in enumerate(zip(CALLS, outcomes, strict=True)):
            params = SamplingParams(max_tokens=call["max_tokens"], ignore_eos=True)
            grammar = BadGrammar(bad and place == 2) if place else None
            mask = grammar.mask() if grammar else None
            client.engine.submit(
                DecodeCall(call["tokens"], params, math.inf, grammar=grammar, mask=mask), outcome
            )
        client.wait(outcomes)
    for place, (outcome, right) in enumerate(zip(outcomes, expected, strict=True)):
        if bad and place == 2:
            assert isinstance(outcome.end, RequestError)
            assert outcome.end.code is Code.INTERNAL
            assert outcome.tokens == right.tokens[: len(outcome.tokens)]
        else:
            assert (outcome.end, outcome.tokens) == ("length", right.tokens)
