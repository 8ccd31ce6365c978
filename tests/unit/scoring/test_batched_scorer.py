"""What the batcher asks of the scorer: costs, parts, joined answers, and what is recorded."""

from dataclasses import replace

import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.scoring.batched_scorer import BatchedScorer, LaunchedScores
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.results.pending_scores import BatchStats, Scores

LABELS = np.array([5, 6], np.int32)
STATS = BatchStats(forwards=1, tokens=2, items=3, cached_tokens=4)


class Device:
    """A fake scorer: `BatchedScorer` only reads its device."""

    between = 0

    def __init__(self, kind: str) -> None:
        self.device = self
        self.type = kind


class Pending:
    def __init__(self, *answers: Scores | RequestError) -> None:
        self.answers = answers

    def result(self) -> tuple[list[Scores | RequestError], BatchStats]:
        return list(self.answers), STATS


def model() -> BatchedScorer:
    return BatchedScorer(Device("cpu"), record=lambda stats: None)


def request(query: int, items: list[int], is_canary: bool = False) -> ScoreRequest:
    prompt = MultiItemPrompt.of([1] * query, [[2] * length for length in items])
    return ScoreRequest(prompt, LABELS, ScoreOptions(), is_canary)


@pytest.mark.parametrize(("kind", "expected"), [("cuda", True), ("cpu", False)])
def test_only_a_device_with_queues_of_its_own_launches_asynchronously(kind: str, expected: bool) -> None:
    assert BatchedScorer(Device(kind), record=lambda stats: None).async_launch is expected


def test_a_request_costs_its_tokens_and_its_empty_items() -> None:
    assert model().cost(request(10, [3, 0, 4, 0])) == 19


def test_answers_become_tensors_with_a_batch_dimension() -> None:
    scores = np.ones((3, 2), np.float32)
    error = RequestError("bad")
    batch = LaunchedScores([request(1, [1])] * 2, Pending(Scores(scores, 7, 4), error), lambda stats: None)
    tensors, failed = batch.finish()
    assert failed is error
    assert tensors["scores"].shape == (1, 3, 2)
    assert (tensors["usage"].dtype, tensors["usage"].tolist()) == (np.int32, [[7, 4]])


def test_the_only_item_may_be_a_row_of_probabilities() -> None:
    scores = Scores(np.array([[0.25, 0.75]], np.float32), 7, 4)
    asked = [request(1, [1]), replace(request(1, [1]), as_row=True)]
    as_scores, as_row = LaunchedScores(asked, Pending(scores, scores), lambda stats: None).finish()
    assert as_scores["scores"].tolist() == [[[0.25, 0.75]]]
    assert as_row["probabilities"].tolist() == [[0.25, 0.75]]
    assert as_scores.keys() ^ as_row.keys() == {"scores", "probabilities"}


def test_the_parts_of_a_request_are_joined_in_order() -> None:
    large = request(10, [1] * 5)
    parts = LaunchedScores(
        [large] * 2,
        Pending(
            Scores(np.array([[1, 2], [3, 4]], np.float32), 12, 0),
            Scores(np.array([[5, 6]], np.float32), 13, 10),
        ),
        lambda stats: None,
    ).finish()
    answer = model().join(large, parts)
    assert answer["scores"].tolist() == [[[1, 2], [3, 4], [5, 6]]]
    # All tokens of the request; what later parts hit in the cache was put there by the first.
    assert answer["usage"].tolist() == [[15, 0]]
    assert answer["usage"].dtype == np.int32


@pytest.mark.parametrize(
    ("canaries", "recorded"), [([False], STATS), ([True, False], STATS), ([True, True], None)]
)
def test_a_batch_of_canaries_is_not_work(canaries: list[bool], recorded: BatchStats | None) -> None:
    records: list[BatchStats | None] = []
    requests = [request(1, [1], is_canary) for is_canary in canaries]
    scores = Scores(np.ones((1, 2), np.float32), 2, 0)
    batch = LaunchedScores(requests, Pending(*[scores] * len(requests)), records.append)
    batch.finish()
    assert records == []
    batch.count()
    assert records == [recorded]
