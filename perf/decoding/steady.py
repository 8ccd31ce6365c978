"""Tokens/s while as many sequences run as ever and no prompt is prefilled."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

from hiscore.decoding.stats import EngineStats

INTERVAL_S = 0.1
NEARLY_ALL = 0.95
"""Of the most rows that any interval has in a step: sequences end one by one."""


@dataclass(frozen=True)
class Sample:
    """What an engine has done by some moment.

    Attributes:
        at: Seconds.
        steps: Decode steps.
        tokens: Tokens sent.
        prompt_tokens: Tokens prefilled.
    """

    at: float
    steps: int
    tokens: int
    prompt_tokens: int


@dataclass(frozen=True)
class Steady:
    """NaN where there was no such interval.

    Attributes:
        tokens_per_s: By the wall clock.
        rows: Of a step.
        seconds: Of those intervals together.
    """

    tokens_per_s: float
    rows: float
    seconds: float


def steady(samples: Sequence[Sample]) -> Steady:
    """Sum up the intervals between samples that only decode, with nearly as many rows as any of them.

    Args:
        samples: In the order of time.
    """
    intervals = [
        (after.at - before.at, after.steps - before.steps, after.tokens - before.tokens)
        for before, after in pairwise(samples)
        if after.steps > before.steps and after.prompt_tokens == before.prompt_tokens
    ]
    most = max((tokens / steps for _, steps, tokens in intervals), default=0)
    full = [each for each in intervals if each[2] / each[1] >= NEARLY_ALL * most]
    if not full:
        return Steady(math.nan, math.nan, 0.0)
    seconds, steps, tokens = map(sum, zip(*full, strict=True))
    return Steady(tokens / seconds, tokens / steps, seconds)


class Watch:
    """Takes samples of an engine as long as the context lasts.

    Args:
        stats: The engine's statistics so far.
    """

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self.samples: list[Sample] = []

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            stats = self._stats()
            self.samples.append(Sample(time.perf_counter(), stats.steps, stats.tokens, stats.prompt_tokens))
