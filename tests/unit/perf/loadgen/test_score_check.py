"""A check that could not fail is refused."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from perf.loadgen import score_check
from perf.loadgen.generator import Sample
from perf.loadgen.score_check import check_control, check_scores
from perf.loadgen.scorer_calls import Ids
from perf.loadgen.window import WrongScores


def test_calls_that_all_score_alike_prove_nothing() -> None:
    samples = [Sample(index, 0.0, scores=np.full((2, 2), 0.5, np.float32)) for index in range(3)]
    with pytest.raises(WrongScores, match="hardly differ"):
        check_control(samples, 1e-3)
    samples[1].scores = np.array([[0.6, 0.4], [0.5, 0.5]], np.float32)
    check_control(samples, 1e-3)


@pytest.mark.parametrize(
    ("error", "spread", "message"),
    [(0.0, 0.1, None), (1e-3, 0.1, "differs by"), (0.0, 1e-5, "could not see")],
)
def test_items_are_compared_with_their_own_calls(
    monkeypatch: pytest.MonkeyPatch, error: float, spread: float, message: str | None
) -> None:
    """An item's score follows from its token; in a call of several, scores are off by `error`."""

    def scores(_: Any, call: Ids) -> np.ndarray:
        first = np.array([item[0] * spread for item in call.items]) + error * (len(call.items) > 1)
        return np.stack([first, 1 - first], axis=1)

    monkeypatch.setattr(score_check, "ScoreClient", lambda url: nullcontext())
    monkeypatch.setattr(score_check, "scores_of", scores)
    calls = [Ids([1], [[1], [2], [3]], (9, 7))] * 2
    if message:
        with pytest.raises(WrongScores, match=message):
            check_scores("host:1", calls, 2e-5)
    else:
        check = check_scores("host:1", calls, 2e-5)
        assert (check.scores, check.difference) == (12, 0)
        assert check.control == pytest.approx(0.2)
