"""Every family that is served, by token ids through the real `scorer`, against transformers one item at a time.

The token budget is tiny, so that most calls are split over several forwards. The unit tests of the scorer make the
same comparison with more shapes.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.launcher import Server
from tests.server.fleet import fleet
from tests.server.wire import WAYS, Answer, score_tokens
from tests.support.comparison import check, truth_of
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiny_models import FAMILIES, FIRST, VOCABULARY, make

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
BUDGET = 64

FLEET = 8
"""Families behind one server: each is a process of some 300 MiB."""


@dataclass(frozen=True)
class Family:
    """A checkpoint and the model that serves it."""

    checkpoint: Path
    server: Server
    model: str

    def score(self, call: Tokens, way: str = "grpc", **parameters: Any) -> Answer:
        return score_tokens(self.server, call, LABELS, way, model=self.model, **parameters)

    def true_scores(self, call: Tokens, **options: Any) -> np.ndarray:
        if not call.items:
            return np.empty((0, len(LABELS)))
        return truth_of(self.checkpoint).scores(call.query, call.items, LABELS, **options)


class Fleets:
    """Serves families in groups; a group is stopped when one of another is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, Family] = {}
        self._stop = ExitStack()

    def family(self, name: str) -> Family:
        if name not in self._running:
            self.stop()
            first = list(FAMILIES).index(name) // FLEET * FLEET
            names = list(FAMILIES)[first : first + FLEET]
            checkpoints = {name: make(name, self._directory / name) for name in names}
            settings = {"max_batch_tokens": BUDGET, "query_cache_bytes": 2**20}
            server = self._stop.enter_context(
                fleet("scorer", checkpoints, self._directory / f"{first}.log", **settings)
            )
            self._running = {
                name: Family(checkpoint, server, f"scorer-{name}") for name, checkpoint in checkpoints.items()
            }
        return self._running[name]

    def stop(self) -> None:
        self._running = {}
        self._stop.close()


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleets]:
    fleets = Fleets(tmp_path_factory.mktemp("families"))
    yield fleets
    fleets.stop()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, fleets: Fleets) -> Family:
    return fleets.family(request.param)


ONCE = pytest.mark.parametrize("family", FIRST, indirect=True, scope="module")
"""What is not repeated for families that differ in a layer's arithmetic alone."""


@ONCE
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(tokens(VOCABULARY), min_size=1, max_size=4),
    softmax=st.booleans(),
    way=st.sampled_from(sorted(WAYS)),
)
def test_any_shapes_equal_transformers(batch: list[Tokens], softmax: bool, way: str, family: Family) -> None:
    with ThreadPoolExecutor(len(batch)) as pool:
        answers = pool.map(lambda call: family.score(call, way, apply_softmax=softmax), batch)
        for call, answer in zip(batch, answers, strict=True):
            check(answer.scores, family.true_scores(call, apply_softmax=softmax), not softmax)
            assert answer.prompt_tokens == len(call.query) + sum(map(len, call.items))


def test_scores_equal_transformers_and_of_a_wrong_layout_they_do_not(family: Family) -> None:
    call = random_tokens(np.random.default_rng(4), 13, [3, 7, 7], VOCABULARY)
    expected = family.true_scores(call, apply_softmax=True)
    check(family.score(call, apply_softmax=True).scores, expected)
    # Plain causal attention over the packed sequence: every item sees those before it.
    seen = list(accumulate(call.items))
    for wrong in (Tokens(call.query, call.items[::-1]), Tokens(call.query, seen)):
        with pytest.raises(AssertionError):
            check(family.score(wrong, apply_softmax=True).scores, expected)
