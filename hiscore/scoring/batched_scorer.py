"""The scorer as the batcher sees it: costs, parts, launches, and response tensors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hiscore.arrays import Outputs
from hiscore.batching.batched_model import LaunchedBatch, LaunchedSlice
from hiscore.device.loss import end_if_device_is_lost
from hiscore.errors import RequestError
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.pending_scores import BatchStats, PendingScores, Scores
from hiscore.scoring.scorer import Scorer

DEFAULT_BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
"""MAX_BATCH_TOKENS by device: a GPU needs many rows for its full speed, a CPU few."""


class BatchedScorer:
    """`BatchedModel` of `ScoreRequest`, with costs in tokens; answers are `Outputs`."""

    def __init__(self, scorer: Scorer, record: Callable[[BatchStats | None], None]) -> None:
        """Wrap a scorer. After each batch `record` gets its cost, or None if it held only canaries."""
        self.async_launch = scorer.device.type == "cuda"
        self.between = scorer.between
        self._scorer, self._record = scorer, record

    def cost(self, job: ScoreRequest) -> int:
        # An empty item has no tokens, but its row is still read.
        return job.prompt.computed + job.prompt.empty_items

    def plan(self) -> ScoringPlan:
        return self._scorer.packing.plan()

    def launch(self, jobs: list[ScoreRequest]) -> Iterator[LaunchedSlice | LaunchedBatch]:
        return (
            LaunchedScores(jobs, launched, self._record) if isinstance(launched, PendingScores) else launched
            for launched in self._scorer.in_slices(jobs)
        )

    def join(self, job: ScoreRequest, answers: Sequence[Outputs]) -> Outputs:
        usage = np.array([[len(job.prompt.tokens), answers[0]["usage"][0, 1]]], np.int32)
        found: dict[str, Any] = {
            name: np.concatenate([part[name] for part in answers], axis=1) for name in answers[0]
        }
        found |= {"usage": usage}
        return found if job.places is None else {**found, "places": job.places[None]}

    def on_failure(self, error: Exception) -> None:
        end_if_device_is_lost(error)


class LaunchedScores:
    def __init__(
        self,
        requests: Sequence[ScoreRequest],
        pending: PendingScores,
        record: Callable[[BatchStats | None], None],
    ) -> None:
        self._only_canaries = all(request.is_canary for request in requests)
        self._requests, self._pending, self._record = requests, pending, record

    def finish(self) -> list[Outputs | RequestError]:
        answers, self._stats = self._pending.result()
        return [
            answer if isinstance(answer, RequestError) else outputs(request, answer)
            for request, answer in zip(self._requests, answers, strict=True)
        ]

    def count(self) -> None:
        self._record(None if self._only_canaries else self._stats)


def outputs(request: ScoreRequest, scores: Scores) -> Outputs:
    usage = np.array([[scores.prompt_tokens, scores.cached_tokens]], np.int32)
    found: dict[str, Any] = {"usage": usage}
    if request.scores_items:
        found |= {"probabilities": scores.scores} if request.as_row else {"scores": scores.scores[None]}
    if request.places is not None and scores.place_values is not None:
        found |= {"places": request.places[None], "place_values": scores.place_values[None]}
    if scores.tokens is not None:
        found |= {f"token_{name}": each[None] for name, each in scores.tokens._asdict().items()}
    return found
