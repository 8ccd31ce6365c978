"""The scorer's host path as it runs on a GPU for weeks: what has been answered is freed, and no page is lost.

Batches are launched by whoever comes, on one GPU in slices, and calls to an idle scorer run on the spot: on a CPU
the server does none of that.
"""

import gc
from typing import Any
from weakref import ref

import numpy as np
import pytest

from hiscore.batching import request_order, waiting
from hiscore.batching.batched_model import BatchLimits, QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.errors import Code, RequestError
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiers import first_of
from tests.support.timeouts import TIMEOUT_S
from tests.support.tiny_models import VOCABULARY
from tests.support.under_load import Reply
from tests.unit.scoring.test_slices import BUDGET, sliced

CALLS, AT_ONCE = 600, 30
FOREVER, PASSED = float("inf"), 0.0


class Caller(Reply):
    """Of some the callers have gone."""

    def __init__(self, gone: bool) -> None:
        super().__init__()
        self.gone = gone

    def is_cancelled(self) -> bool:
        return self.gone


def call(rng: np.random.Generator, queries: list[list[int]]) -> ScoreRequest:
    """Small or large; the query may be cached, and one label in some calls is given twice."""
    items = rng.integers(1, 20, int(rng.choice([1, 2, 12, 60]))).tolist()
    query = queries[int(rng.integers(len(queries)))]
    tokens = Tokens(query, random_tokens(rng, 0, items, VOCABULARY).items)
    labels = rng.integers(0, VOCABULARY // 4, 2 * len(items)).astype(np.int32)
    options = ScoreOptions(apply_softmax=bool(rng.integers(2)), label_counts=(2,) * len(items))
    return ScoreRequest.of(tokens.prompt(), labels, options)


@pytest.mark.slow  # whole models
@pytest.mark.parametrize(("whole", "kept"), first_of((False, False), (True, False), (True, True)))
@pytest.mark.exhaustive
def test_ended_calls_are_freed(whole: bool, kept: bool, checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of calls that fail, come too late or are cancelled. The control keeps what it has answered."""
    monkeypatch.setattr(waiting, "POLL_AFTER_S", 0.0)
    scorer, rng = sliced(checkpoints("qwen3")[0], monkeypatch, pages=20), np.random.default_rng(0)
    if whole:
        scorer.runner.between = 0
    compute, chance = scorer.runner.in_slices, np.random.default_rng(1)

    def compute_or_fail(*arguments: Any) -> Any:
        if chance.random() < 0.05:
            raise ValueError("the launch fails")
        return compute(*arguments)

    scorer.runner.in_slices = compute_or_fail
    model = BatchedScorer(scorer, lambda stats: None)
    model.async_launch = True
    batcher = Batcher(model, BatchLimits(BUDGET, AT_ONCE, max_alone_cost=BUDGET // 4))
    keeper: list[Any] = []
    if kept:
        reply = Batcher._reply
        monkeypatch.setattr(
            Batcher,
            "_reply",
            lambda self, request, answer: (keeper.append(request), reply(self, request, answer)),
        )
    queries = [rng.integers(0, VOCABULARY, size).tolist() for size in (20, 32, 64, 64, 75, 90)]
    seen, answers = [], []
    for _ in range(CALLS // AT_ONCE):
        batcher.run_alone(call(rng, queries))
        callers = [Caller(gone=rng.random() < 0.1) for _ in range(AT_ONCE)]
        for caller in callers:
            deadline = PASSED if rng.random() < 0.1 else FOREVER
            request = QueuedRequest(call(rng, queries), caller, deadline)
            seen.append(ref(request))
            batcher.submit([request])
            del request
        answers += [caller.answer.result(TIMEOUT_S) for caller in callers]
    assert scorer.runner.sliced > CALLS // AT_ONCE
    codes = {answer.code if isinstance(answer, RequestError) else None for answer in answers}
    assert codes == {None, *Code}
    gc.collect()
    alive = sum(request() is not None for request in seen)
    # Two heaps may hold a few that are out of date.
    assert (alive <= 2 * request_order.SPARE) != kept
    batcher.close()
    cache = scorer.packing.cache
    assert sorted([*cache._free_pages, *cache._cached.values()]) == list(range(20))
