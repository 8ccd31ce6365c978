"""Families by token ids through the real `scorer`, against transformers one item at a time.

The token budget is tiny, so that most calls are split over several forwards. The unit tests of the scorer make the
same comparison for every family; here are the families that no other test serves from a real server.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.launcher import Server
from hiscore.settings import ServeSettings
from tests.server.wire import WAYS, score_tokens
from tests.support.comparison import INVARIANCE, check, truth_of
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiny_models import FAMILIES, VOCABULARY, make

pytestmark = pytest.mark.server

LABELS = [5, 77, 401]
BUDGET = 64

# test_score_classifiers serves qwen3 and gemma2, test_score_nan mistral, most other tests llama.
SERVED_ELSEWHERE = {"llama", "qwen3", "gemma2", "mistral"}

# One server per family: started once, stopped before the next.


@pytest.fixture(scope="module", params=[name for name in FAMILIES if name not in SERVED_ELSEWHERE])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def family(checkpoint: Path) -> Iterator[Server]:
    chosen = {"device": "cpu", "max_batch_tokens": BUDGET, "query_cache_bytes": 2**20}
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    settings_ = ServeSettings(model=str(checkpoint), models="scorer", **chosen, **ports)
    with Server(settings_, checkpoint / "server.log") as server:
        yield server


def true_scores(checkpoint: Path, call: Tokens, **options: object) -> np.ndarray:
    if not call.items:
        return np.empty((0, len(LABELS)))
    return truth_of(checkpoint).scores(call.query, call.items, LABELS, **options)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(tokens(VOCABULARY), min_size=1, max_size=4),
    softmax=st.booleans(),
    way=st.sampled_from(sorted(WAYS)),
)
def test_any_shapes_equal_transformers(
    batch: list[Tokens], softmax: bool, way: str, family: Server, checkpoint: Path
) -> None:
    with ThreadPoolExecutor(len(batch)) as pool:
        answers = pool.map(lambda call: score_tokens(family, call, LABELS, way, apply_softmax=softmax), batch)
        for call, answer in zip(batch, answers, strict=True):
            check(answer.scores, true_scores(checkpoint, call, apply_softmax=softmax), not softmax)
            assert answer.prompt_tokens == len(call.query) + sum(map(len, call.items))


# Several times the budget; the unit tests of the scorer have the same shapes with 2,000 tokens.
LONG = 5 * BUDGET
ADVERSARIAL = {
    "one-beside-a-long-one": (20, [1, LONG]),
    "long-query": (LONG, [1, 2]),
    "empty-items": (1, [0] * 50),
    "empty-query": (0, [1, 100, 7]),
}


@pytest.mark.parametrize("shape", ADVERSARIAL)
def test_adversarial_shapes_equal_transformers(shape: str, family: Server, checkpoint: Path) -> None:
    call = random_tokens(np.random.default_rng(3), *ADVERSARIAL[shape], VOCABULARY)
    answer = score_tokens(family, call, LABELS, apply_softmax=True)
    check(answer.scores, true_scores(checkpoint, call, apply_softmax=True))


def test_control_a_wrong_layout_fails_the_same_check(family: Server, checkpoint: Path) -> None:
    call = random_tokens(np.random.default_rng(4), 13, [3, 7, 7], VOCABULARY)
    expected = true_scores(checkpoint, call, apply_softmax=True)
    check(score_tokens(family, call, LABELS, apply_softmax=True).scores, expected)
    # Plain causal attention over the packed sequence: every item sees those before it.
    seen = list(accumulate(call.items))
    for wrong in (Tokens(call.query, call.items[::-1]), Tokens(call.query, seen)):
        with pytest.raises(AssertionError):
            check(score_tokens(family, wrong, LABELS, apply_softmax=True).scores, expected)


def test_company_changes_no_score(family: Server) -> None:
    """Other items, another order, other calls at the same time."""
    rng = np.random.default_rng(5)
    call = random_tokens(rng, 17, [4, 9, 1, 0, 30, 9], VOCABULARY)

    def scores(items: list[list[int]]) -> np.ndarray:
        return score_tokens(family, Tokens(call.query, items), LABELS, apply_softmax=True).scores

    alone = np.concatenate([scores([item]) for item in call.items])
    order = rng.permutation(len(call.items))
    found = {
        "together": (scores(call.items), alone),
        "permuted": (scores([call.items[place] for place in order]), alone[order]),
        "fewer": (scores(call.items[2:4]), alone[2:4]),
        "more": (scores([*call.items, *call.items[::-1]])[:6], alone),
    }
    others = [random_tokens(rng, 12, [5, 9, 3], VOCABULARY) for _ in range(7)]
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(score_tokens, family, other, LABELS) for other in others]
        found["in-a-crowd"] = scores(call.items), alone
        assert all(len(future.result().scores) == 3 for future in running)
    for name, (these, those) in found.items():
        np.testing.assert_allclose(these, those, atol=INVARIANCE, rtol=0, err_msg=name)
    # They do differ from item to item, or the checks above would say nothing.
    assert np.ptp(alone[:, 0]) > 100 * INVARIANCE
