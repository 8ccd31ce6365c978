"""What a request may ask for, and what a scheduler may do to it, on two ranks as on one."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work, tiny_models
from tests.support.decode_client import Client, Outcome, serving
from tests.support.decoding import build, checkpoint, prompt

pytestmark = pytest.mark.exhaustive

FEW = (160, 192)
"""Selected and buffered: a longer sequence is spilled for want of device pages."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("qwen3", tmp_path_factory.mktemp("features"))


def together(ranks: Ranks, path: Path, *given: Any, late: int | None = None) -> ParallelWorker:
    ranks.prepare(partial(decode_rank_work.build_on, path=path, late=late, deaf=False, given=given))
    return ParallelWorker(ranks)


class Odd:
    """A grammar whose words are the odd tokens."""

    def mask(self) -> Any:
        return np.full(-(-tiny_models.VOCABULARY // 32), 0xAAAAAAAA, np.uint32).view(np.int32)

    def advance(self, token: int) -> Any:
        assert token % 2
        return self.mask()


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"grammar": True},
    {"grammar": True, "temperature": 1.5, "seed": 3},
    {"temperature": 2.0, "top_p": 0.9, "min_p": 0.01, "seed": 4},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 3},
    {"logit_bias": {7: 100.0}},
)


def run_all(worker: CacheWorker | ParallelWorker) -> list[Outcome]:
    outcomes = [Outcome() for _ in OPTIONS]
    with serving(worker) as client:
        for number, (each, outcome) in enumerate(zip(OPTIONS, outcomes, strict=True)):
            options = dict(each)
            grammar: Any = Odd() if options.pop("grammar", False) else None
            params = SamplingParams(max_tokens=12, ignore_eos=True, **options)
            mask = grammar.mask() if grammar else None
            call = DecodeCall(prompt(30, seed=number), params, math.inf, grammar=grammar, mask=mask)
            client.engine.submit(call, outcome)
        client.wait(outcomes)
    assert client.failures == []
    return outcomes


def test_whatever_is_asked_for_is_chosen_alike(ranks: Ranks, path: Path) -> None:
    expected, found = (
        run_all(build(path, "quest", 96, 96, dtype=torch.float64)),
        run_all(together(ranks, path, "quest", 96, 96)),
    )
    assert [outcome.tokens for outcome in found] == [outcome.tokens for outcome in expected]
    for number in (1, 2):
        assert all(token % 2 for token in found[number].tokens)
    assert set(found[-1].tokens) == {7}
    # The control: they do not choose alike of themselves.
    assert any(token % 2 == 0 for token in found[0].tokens)
    assert len({tuple(outcome.tokens) for outcome in found}) == len(found)


CALLS = [{"tokens": prompt(n, seed=n), "max_tokens": 24} for n in (340, 40, 90, 70)]


def alone(path: Path) -> list[list[int]]:
    """The tokens of each call when nothing else runs, attending to everything."""
    found = []
    with serving(build(path, "dense", dtype=torch.float64)) as client:
        for call in CALLS:
            outcome = client.submit(**call)
            client.wait([outcome])
            found.append(outcome.tokens)
    return found


@pytest.mark.parametrize("pages", [20, 96])
def test_under_pressure_the_longest_is_spilled_on_all_ranks(pages: int, ranks: Ranks, path: Path) -> None:
    """In memory that is NaN wherever nothing was written, with copies that are late on one rank."""
    worker = together(ranks, path, "auto", *FEW, late=1)
    worker.cache_config = replace(worker.cache_config, device_pages=pages, reserved_pages=0)
    admit, full = worker.admit, []
    worker.admit = lambda given: (full.append(given.full_attention), admit(given))[1]  # type: ignore[method-assign]
    with serving(worker) as client:
        outcomes = [client.submit(**call) for call in CALLS]
        client.wait(outcomes)
    assert client.failures == []
    expected = alone(path)
    assert [outcome.end for outcome in outcomes] == ["length"] * len(CALLS)
    assert [outcome.tokens for outcome in outcomes[1:]] == expected[1:]
    assert outcomes[0].tokens[0] == expected[0][0]
    # The control: with pages enough nobody is.
    assert full.count(False) == (pages == 20)
    assert (outcomes[0].tokens == expected[0]) or pages == 20


def test_a_call_that_is_cancelled_leaves_nothing_on_any_rank(ranks: Ranks, path: Path) -> None:
    """`serving` sees that its memory is free; what takes it is right, in memory that is NaN when it is freed."""
    expected = alone(path)
    with serving(together(ranks, path, "dense", 16, 24, late=1)) as client:
        gone = [client.submit(prompt(100, seed=each), 300) for each in range(3)]
        _after(client, gone, tokens=3)
        outcomes = [client.submit(**call) for call in CALLS]
        for outcome in gone:
            client.engine.cancel(outcome)
        client.wait([*gone, *outcomes])
    assert client.failures == []
    assert [outcome.end for outcome in gone] == ["cancelled"] * 3
    assert [outcome.tokens for outcome in outcomes] == expected


def _after(client: Client, outcomes: list[Outcome], tokens: int) -> None:
    """Wait until each has so many tokens."""
    with client._changed:
        assert client._changed.wait_for(lambda: all(len(each.tokens) >= tokens for each in outcomes), 120)
