"""Workers whose layers keep states: handed on by chunks and steps, kept when preempted, and found by prompts."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.models import gqa
from hiscore.decoding.models.states import SequenceStates, plan_states
from hiscore.decoding.pools.states import States
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.models.support import servable
from hiscore.recurrence.metadata import PADDING_SLOT, StatePlan
from hiscore.recurrence.torch_recurrence import StepRecurrence
from tests.support.decode_client import serving
from tests.support.decode_truth import DecodeTruth, near_best
from tests.support.decoding import build, prompt
from tests.unit.decoding.worker.test_prefix import LATER, OTHER, START, Seen, run
from tests.unit.decoding.worker.test_worker_engine import Call, call, crowd, late, tokens_alone
from tests.unit.decoding.worker.test_worker_truth import LONGER, SINGLE, WRONG, largest_error

pytestmark = pytest.mark.slow  # whole models

FAMILY = "qwen3-hybrid"
COUNT = 10


@pytest.fixture(scope="module")
def make(path: Callable[[str], Path]) -> Callable[..., CacheWorker]:
    """In float64, where products of other numbers of rows change no token; its one attention layer selects."""

    def get(selector: str = "exact", top_k: int = 16, buffer: int = 24, **settings: Any) -> CacheWorker:
        given = {"dtype": torch.float64, "chunk": 64, "dense_layers": 0, **settings}
        return build(path(FAMILY), selector, top_k, buffer, **given)

    return get


@pytest.fixture(scope="module")
def truth(path: Callable[[str], Path]) -> DecodeTruth:
    return DecodeTruth(path(FAMILY), torch.float32)


@pytest.fixture(scope="module")
def alone(make: Any) -> Callable[[str], tuple[list[Call], list[list[int]]]]:
    """Calls of all sorts, and the tokens of each when nothing else runs."""

    @cache
    def get(selector: str) -> tuple[list[Call], list[list[int]]]:
        calls = [call(i) for i in range(COUNT)]
        tokens = tokens_alone(make(selector), calls)
        assert len({tuple(each) for each in tokens}) == COUNT
        return calls, tokens

    return get


# With chunks of 24 tokens, states are handed on anywhere; with 64, as in a server, between two chunks of the rule.
@pytest.mark.parametrize(("selector", "chunk"), [("dense", 24), ("auto", 64), ("quest", 64), ("exact", 256)])
def test_tokens_are_those_of_transformers(make: Any, truth: Any, selector: str, chunk: int) -> None:
    """What a selector has is enough to select everything."""
    worker = make(selector, 224, 224, chunk=chunk, dtype=torch.float32)
    assert len(worker._cache.host_kv) == 1, "one of four layers has keys and values"
    error, misses = largest_error(worker, truth, True, LONGER)
    assert error < SINGLE
    assert (misses > 0) is (selector != "dense")


def test_greedy_tokens_through_an_engine_are_those_of_transformers(make: Any, truth: Any) -> None:
    with serving(make("auto", dtype=torch.float32)) as client:
        outcomes = [client.submit(each, 24) for each in (START, LATER, prompt(5))]
        client.wait(outcomes)
    for each, outcome in zip((START, LATER, prompt(5)), outcomes, strict=True):
        assert near_best(truth.follow(each, outcome.tokens[:-1]), outcome.tokens).max() < SINGLE


@pytest.mark.parametrize("selector", ["auto", "exact"])
def test_join_and_leave_at_every_step_changes_no_sequence(make: Any, alone: Any, selector: str) -> None:
    calls, expected = alone(selector)
    outcomes, _ = crowd(late(make(selector)), calls)
    assert [outcome.tokens for outcome in outcomes] == expected


def preempted(worker: CacheWorker, calls: list[Call]) -> tuple[list[list[int]], int, int]:
    """Tokens of calls that take turns of three steps, preemptions, and tokens that were prefilled."""
    seen = Seen(late(worker))
    with serving(worker, quantum=3) as client:
        outcomes = [client.submit(**each) for each in calls]
        client.wait(outcomes)
    return [outcome.tokens for outcome in outcomes], client.stats.preemptions, seen.prefilled


@pytest.mark.parametrize("selector", ["dense", "auto", "exact"])
def test_a_preempted_sequence_keeps_its_state(make: Any, alone: Any, selector: str) -> None:
    """With slots for all there is no second prefill; with as many as run, those that are preempted start over."""
    calls, expected = alone(selector)
    prompts = sum(len(each["tokens"]) for each in calls)
    for slots in (COUNT, 2):
        worker = make(selector, sequences=2)
        worker.cache_config = replace(worker.cache_config, state_slots=slots)
        tokens, preemptions, prefilled = preempted(worker, calls)
        assert tokens == expected
        assert preemptions >= 3
        assert (prefilled == prompts) is (slots == COUNT)


def test_what_was_taken_on_the_host_is_computed_again(make: Any) -> None:
    """Two grow to three blocks of 64, and there are four: the newer one starts over, with a state of no token."""
    prompts, tokens = [prompt(60, seed=seed) for seed in (1, 2)], []
    for blocks in (8, 4):
        worker = late(make("exact"))
        worker.cache_config = replace(worker.cache_config, host_pages=blocks * 64)
        with serving(worker) as client:
            outcomes = [client.submit(each, 80) for each in prompts]
            client.wait(outcomes)
        assert client.stats.preemptions == (blocks == 4)
        tokens.append([outcome.tokens for outcome in outcomes])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("selector", ["dense", "auto", "exact"])
def test_a_prefix_is_found_with_its_state(make: Any, selector: str) -> None:
    """At the last multiple of 64 of an earlier prompt, with the logits of a prompt that is computed as a whole."""
    logits, tokens = [], []
    for caching in (True, False):
        seen = Seen(make(selector, prefix_cache=caching, chunk=256))
        with serving(seen.worker) as client:
            outcomes = run(client, START, OTHER, LATER, START)
            assert client.stats.cached_states == (2 if caching else 0)
        assert [outcome.usage[1] for outcome in outcomes] == [0, 0, 128 * caching, 128 * caching]
        assert seen.prefilled == 150 + 150 + 140 + 150 - 256 * caching
        logits.append(torch.stack(seen.logits))
        tokens.append([outcome.tokens for outcome in outcomes])
    torch.testing.assert_close(*logits, rtol=0, atol=1e-9)  # products of other numbers of rows
    assert tokens[0] == tokens[1]


def test_a_shared_beginning_is_found_by_the_third_prompt(make: Any) -> None:
    """The second one shows where it ends, and leaves a state there."""
    others = [np.concatenate((START[:100], prompt(60, seed=seed))) for seed in (2, 3)]
    with serving(make(prefix_cache=True)) as client:
        assert [each.usage[1] for each in run(client, START, *others)] == [0, 0, 64]


def test_states_that_nobody_holds_make_room(make: Any) -> None:
    """One slot, so that a sequence takes over the state that it finds; two, of which it takes the older one."""
    for slots, cached in ((1, 0), (2, 128)):
        worker = make(prefix_cache=True)
        worker.cache_config = replace(worker.cache_config, state_slots=slots)
        with serving(worker) as client:
            outcomes = run(client, START, LATER, OTHER, START)
            assert client.stats.cached_states == slots - 1
        assert outcomes[1].usage[1] == cached
        assert outcomes[3].usage[1] == 0, "evicted by the other prompt's"


def test_all_that_decode_offers_works(make: Any) -> None:
    """Log-probabilities, penalties, biases, stop tokens and cancellation, beside plain calls."""
    worker = make("auto")
    with serving(worker) as client:
        (plain,) = run(client, START, max_tokens=12)
        outcomes = [
            client.submit(START, 12, logprobs=3),
            client.submit(START, 12, repetition_penalty=5.0, presence_penalty=1.0),
            client.submit(START, 12, logit_bias=((plain.tokens[3], -100.0),)),
            client.submit(START, 12, stop_token_ids=frozenset({plain.tokens[3]})),
            client.submit(START, 300),
            client.submit(START, 12),
        ]
        client.engine.cancel(outcomes[4])
        client.wait(outcomes)
    ends = [outcome.end for outcome in outcomes]
    assert ends == ["length", "length", "length", "stop", "cancelled", "length"]
    assert outcomes[0].tokens == outcomes[5].tokens == plain.tokens
    assert outcomes[1].tokens != plain.tokens
    assert plain.tokens[3] not in outcomes[2].tokens
    assert outcomes[3].tokens == plain.tokens[: plain.tokens.index(plain.tokens[3]) + 1]


# Controls.


def rolled(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: right(*given).roll(1, 0)


def not_kept(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A step of which no state is left."""

    def plan(self: StepRecurrence, slots: Tensor) -> None:
        right(self, slots)
        self._pool.states[:, PADDING_SLOT] = self._pool.states[:, slots[-1]]
        self._slots = slots.clone()
        self._slots[-1] = PADDING_SLOT

    return plan


def a_token_short(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def convolved(self: StepRecurrence, layer: int, weight: Tensor, x: Tensor) -> Tensor:
        out = right(self, layer, weight, x)
        tails = self._pool.tails[layer]
        tails[self._slots] = tails[self._slots].roll(1, 1)
        return out

    return convolved


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (SequenceStates, "slots_of", rolled),
        (StepRecurrence, "plan_steps", not_kept),
        (StepRecurrence, "_convolved", a_token_short),
    ],
    ids=["of another", "of an earlier token", "a tail one token short"],
)
def test_control_another_state_shows(
    make: Any, truth: Any, owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    assert largest_error(make("dense", dtype=torch.float32), truth)[0] > WRONG


def test_control_a_preempted_sequence_that_gets_another_state_shows(
    make: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, expected = alone("exact")
    monkeypatch.setattr(States, "freed_by", lambda self, sequence, left: int(sequence.held.state_slot >= 0))
    tokens, _, _ = preempted(make("exact", sequences=2), calls)
    assert tokens != expected


@pytest.mark.parametrize("mutation", ["behind its boundary", "never copied"])
def test_control_a_wrong_snapshot_shows(make: Any, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(chunks: Any) -> StatePlan:
        right = plan_states(chunks)
        return right._replace(stored=np.full_like(right.stored, right.stored.max()))

    found = []
    for mutated in (False, True):
        with monkeypatch.context() as patched:
            if mutated and mutation == "behind its boundary":
                patched.setattr(gqa, "plan_states", plan)
            elif mutated:
                patched.setattr(SequenceStates, "copy", lambda *_: None)
            seen = Seen(make(prefix_cache=True, chunk=256))
            with serving(seen.worker) as client:
                run(client, START, LATER)
            found.append(seen.logits[1])
    assert float((found[0] - found[1]).abs().max()) > WRONG


# Refusals.


def test_a_gpu_and_several_ranks_are_refused_by_name(path: Any) -> None:
    assert "decode" in servable(path(FAMILY)).models
    assert "decode computes on a CPU alone" in servable(path(FAMILY), on_gpu=True).left_out["decode"]
    assert "recurrent layers" in servable(path(FAMILY), ranks=2).left_out["decode"]
