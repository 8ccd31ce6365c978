"""Arms of a comparison measured in turn within one run, so that clock rates and heat affect all of them alike.

A round runs every arm once, each round in the opposite order of the one before (A B, B A, ...). A ratio is taken
within a round, between neighbours in time; what is reported is the median over rounds and its interval.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of some repetitions, and an interval that holds the true median with 95% or more.

    With fewer than six repetitions no interval reaches 95%: low and high are then the extremes.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class ArmResult:
    """An arm's value, and its ratio to the first arm of the same round."""

    value: Spread
    ratio: Spread


def spread(values: Sequence[float]) -> Spread:
    """Median and interval of some values by order statistics, for any distribution.

    Raises:
        ValueError: There are no values.
    """
    ordered, n = sorted(values), len(values)
    if not n:
        raise ValueError("there is no value to take the median of")
    cut = 0
    # The true median is below the k-th smallest value only if at most k - 1 of n values fell below it.
    while 2 * sum(math.comb(n, k) for k in range(cut + 2)) <= 0.05 * 2**n:
        cut += 1
    return Spread(statistics.median(ordered), ordered[cut], ordered[n - 1 - cut])


def in_turns(arms: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round and arm, every second round in reverse order."""
    names = list(arms)
    for index in range(rounds):
        for name in names[:: 1 if index % 2 == 0 else -1]:
            yield index, name


def interleave(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, ArmResult]:
    """Run every arm once a round and compare each with the first one."""
    values: dict[str, list[float]] = {name: [] for name in arms}
    for _, name in in_turns(arms, rounds):
        values[name].append(arms[name]())
    base = next(iter(values.values()))
    return {
        name: ArmResult(spread(measured), spread([b / a for a, b in zip(base, measured, strict=True)]))
        for name, measured in values.items()
    }
