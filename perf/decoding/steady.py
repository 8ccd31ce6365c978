"""Tokens/s while as many sequences run as ever and no prompt is prefilled."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from hiscore.decoding.engine.stats import EngineStats
from perf.machine.repeatedly import repeatedly

INTERVAL_S = 0.1
NEARLY_ALL = 0.95
"""Share of the most rows that any interval has in a step: sequences end one by one."""


@dataclass(frozen=True)
class Sample:
    """An engine's counts at some moment."""

    at: float
    steps: int
    tokens: int
    prompt_tokens: int


@dataclass(frozen=True)
class Steady:
    """NaN where there was no such interval.

    Attributes:
        tokens_per_s: By the wall clock.
        seconds: Of those intervals together.
    """

    tokens_per_s: float
    rows: float
    seconds: float


def steady(samples: Sequence[Sample]) -> Steady:
    """Sum up the intervals between samples that only decode, with nearly as many rows as any of them."""
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


@contextmanager
def watched(stats: Callable[[], EngineStats]) -> Iterator[list[Sample]]:
    """Samples of an engine, taken as long as the context lasts."""
    samples: list[Sample] = []

    def sample() -> None:
        now = stats()
        samples.append(Sample(time.perf_counter(), now.steps, now.tokens, now.prompt_tokens))

    with repeatedly(sample, INTERVAL_S):
        yield samples
