"""Models with fixed answers, as the SDK sees them."""

import time

import numpy as np
import pytest

from hiscore_client import ScoreClient
from perf.loadgen.fixed_answers import SCORE, serve


@pytest.mark.parametrize(("counts", "columns"), [(None, 3), ([1, 2], 2)])
def test_scores_have_the_shape_that_was_asked_for(counts: list[int] | None, columns: int) -> None:
    server, port = serve()
    try:
        with ScoreClient(f"127.0.0.1:{port}") as client:
            found = client.score_ids([1, 2], [[3], [4, 5]], [7, 8, 9], label_counts=counts)
            np.testing.assert_array_equal(found.scores, np.full((2, columns), SCORE, np.float32))
            by_text = client.score("q", ["a", "b"], labels=["x", "y", "z"], label_counts=counts)
            np.testing.assert_array_equal(by_text.scores, found.scores)
    finally:
        server.stop(0)


def test_answers_come_after_some_time() -> None:
    server, port = serve(after_s=0.05)
    try:
        with ScoreClient(f"127.0.0.1:{port}") as client:
            start = time.perf_counter()
            client.score_ids([1, 2], [[3]], [7])
            assert time.perf_counter() - start >= 0.05
    finally:
        server.stop(0)
