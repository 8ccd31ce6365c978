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
from hiscore.scoring.results.pending_scores import BatchStats
from hiscore.scoring.scorer import Scorer
from tests.support.scoring import request, score
from tests.support.strategies import Tokens
from tests.support.timeouts import TIMEOUT_S

THREADS = 4


class Reply:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def send(self, answer: Any) -> None:
        self.answer.set_result(answer)

    def is_cancelled(self) -> bool:
        return False


def scores_under_load(
    scorer: Scorer, calls: Sequence[Tokens], options: ScoreOptions, budget: int
) -> tuple[list[np.ndarray], BatchStats]:
    """Send each call once, from threads that begin together, into batches of `budget` tokens.

    Returns:
        Scores by call, float32 [items, labels], and the sum of what the batches were.
    """
    seen: list[BatchStats] = []
    batcher = Batcher(
        BatchedScorer(scorer, lambda stats: seen.append(stats) if stats else None),
        BatchLimits(budget, len(calls)),
    )
    begin = threading.Barrier(THREADS)

    def send(part: int) -> list[tuple[int, Reply]]:
        begin.wait()
        replies = []
        for index in range(part, len(calls), THREADS):
            replies.append((index, reply := Reply()))
            asked = request(scorer, calls[index], options)
            batcher.submit([QueuedRequest(asked, reply, deadline=float("inf"))])
        return replies

    with ThreadPoolExecutor(THREADS) as pool:
        sent = [pair for pairs in pool.map(send, range(THREADS)) for pair in pairs]
    answers = {index: reply.answer.result(timeout=TIMEOUT_S) for index, reply in sent}
    batcher.close()
    total = BatchStats(
        *(sum(column) for column in zip(*(vars(stats).values() for stats in seen), strict=True))
    )
    return [answers[index]["scores"][0] for index in range(len(calls))], total


def scores_alone(scorer: Scorer, calls: Sequence[Tokens], options: ScoreOptions) -> list[np.ndarray]:
    """Each item in a call of its own, one after the other: by call, float32 [items, labels]."""
    return [
        np.concatenate([score(scorer, [Tokens(call.query, [item])], options)[0] for item in call.items])
        for call in calls
    ]
