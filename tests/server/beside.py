"""Valid calls made in the background of a test: each must get the right answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hiscore.launcher import Server
from tests.server.wire import score_texts, score_tokens
from tests.support.comparison import check, truth_of
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY

LABELS = [5, 77, 401]
PAUSE_S = 0.02


@dataclass
class Beside:
    """The background calls: how many got the right answer, and the first failure."""

    calls: int = 0
    failure: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.failure:
            raise AssertionError("a good call beside failed") from self.failure


@contextmanager
def good_calls_beside(server: Server, checkpoint: Path) -> Iterator[Beside]:
    """Alternate calls by ids over gRPC and by text over HTTP, and compare their scores with the expected ones."""
    call = random_tokens(np.random.default_rng(0), 30, [4, 1, 9], VOCABULARY)
    expected = truth_of(checkpoint).scores(call.query, call.items, LABELS)
    in_text = score_texts(server, "Is it?", [" a", " b"], LABELS).scores
    beside = Beside()

    def run() -> None:
        try:
            while not beside.ended.wait(PAUSE_S):
                check(score_tokens(server, call, LABELS).scores, expected, over_vocabulary=True)
                again = score_texts(server, "Is it?", [" a", " b"], LABELS, "http").scores
                check(again, in_text, over_vocabulary=True)
                beside.calls += 2
        except BaseException as error:
            beside.failure = error

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield beside
    finally:
        beside.ended.set()
        thread.join()
    beside.check()
    assert beside.calls, "no good call had its turn"
    check(score_tokens(server, call, LABELS).scores, expected, over_vocabulary=True)
