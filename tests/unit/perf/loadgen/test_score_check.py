"""A check that could not fail is refused."""

import numpy as np
import pytest

from perf.loadgen.generator import Sample
from perf.loadgen.score_check import check_control
from perf.loadgen.window import WrongScores


def test_calls_that_all_score_alike_prove_nothing() -> None:
    samples = [Sample(index, 0.0, scores=np.full((2, 2), 0.5, np.float32)) for index in range(3)]
    with pytest.raises(WrongScores, match="hardly differ"):
        check_control(samples, 1e-3)
    samples[1].scores = np.array([[0.6, 0.4], [0.5, 0.5]], np.float32)
    check_control(samples, 1e-3)
