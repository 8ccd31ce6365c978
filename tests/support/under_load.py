"""Calls that many threads send to one scorer through the batcher, as the server does."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from hiscore.batching.batched_model import BatchLimits, QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.pending_scores import BatchStats
from hiscore.scoring.scorer import Scorer
from tests.support.scoring import LABELS
from tests.support.strategies import Tokens
from tests.support.timeouts import TIMEOUT_S


class Reply:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def send(self, answer: Any) -> None:
        self.answer.set_result(answer)

    def is_cancelled(self) -> bool:
        return False


def scores_under_load(
    scorer: Scorer, calls: Sequence[Tokens], options: ScoreOptions, budget: int, threads: int = 4
) -> tuple[list[np.ndarray], BatchStats]:
    """Send the calls from threads that begin together.

    Args:
        scorer: What computes them.
        calls: Each is sent once.
        options: Of all calls.
        budget: Tokens of a batch.
        threads: That share the calls.

    Returns:
        Scores by call, float32 [items, labels], and the sum of what the batches were.
    """
    seen: list[BatchStats] = []
    batcher = Batcher(
        BatchedScorer(scorer, lambda stats: seen.append(stats) if stats else None),
        BatchLimits(budget, len(calls)),
    )
    begin = threading.Barrier(threads)

    def send(part: int) -> list[tuple[int, Reply]]:
        begin.wait()
        replies = []
        for index in range(part, len(calls), threads):
            replies.append((index, reply := Reply()))
            prompt = scorer.packing.prompt(calls[index].prompt())
            request = ScoreRequest(prompt, np.array(LABELS, np.int32), options)
            batcher.submit([QueuedRequest(request, reply, deadline=float("inf"))])
        return replies

    with ThreadPoolExecutor(threads) as pool:
        sent = [pair for pairs in pool.map(send, range(threads)) for pair in pairs]
    answers = {index: reply.answer.result(timeout=TIMEOUT_S) for index, reply in sent}
    batcher.close()
    total = BatchStats(
        *(sum(column) for column in zip(*(vars(stats).values() for stats in seen), strict=True))
    )
    return [answers[index]["scores"][0] for index in range(len(calls))], total


def scores_alone(scorer: Scorer, calls: Sequence[Tokens], options: ScoreOptions) -> list[np.ndarray]:
    """Each item in a call of its own, one after the other: by call, float32 [items, labels]."""
    labels = np.array(LABELS, np.int32)
    found = []
    for call in calls:
        one_by_one = [
            ScoreRequest(Tokens(call.query, [item]).prompt(), labels, options) for item in call.items
        ]
        found.append(np.concatenate([scorer.score([request])[0][0].scores for request in one_by_one]))  # type: ignore[union-attr]
    return found
