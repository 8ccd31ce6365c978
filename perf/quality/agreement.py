"""Measures of how well scores separate two classes, and how far two sets of scores agree."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def mid_ranks(values: Float64) -> Float64:
    """Ranks from 1, [n]; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Float64 = (last - (counts - 1) / 2)[place]
    return shared


def auc(scores: Float64, positive: Bools) -> float:
    """The share of pairs of one positive and one negative whose positive scores higher; ties count half.

    Raises:
        ValueError: A class is empty.
    """
    ones = int(positive.sum())
    zeros = len(positive) - ones
    if not ones or not zeros:
        raise ValueError(f"AUC needs both classes, there are {ones} positive and {zeros} negative ones")
    above = mid_ranks(scores)[positive].sum() - ones * (ones + 1) / 2
    return float(above / (ones * zeros))


def spearman(a: Float64, b: Float64) -> float:
    """Rank correlation; NaN if one side is constant."""
    x, y = mid_ranks(a), mid_ranks(b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True)
class Interval:
    """A value and the central 95% of its bootstrap resamples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:7.4f} [{self.low:.4f}, {self.high:.4f}]"


def auc_interval(scores: Float64, positive: Bools, resamples: int = 1_000, seed: int = 0) -> Interval:
    """AUC with its bootstrap interval over the items."""
    resampled = [auc(scores[rows], positive[rows]) for rows in _resamples(positive, resamples, seed)]
    return Interval(auc(scores, positive), *_middle(resampled))


def auc_gain_interval(
    scores: Float64, baseline: Float64, positive: Bools, resamples: int = 1_000, seed: int = 0
) -> Interval:
    """AUC minus the baseline's, with resamples shared by both, so that common noise cancels."""
    resampled = [
        auc(scores[rows], positive[rows]) - auc(baseline[rows], positive[rows])
        for rows in _resamples(positive, resamples, seed)
    ]
    return Interval(auc(scores, positive) - auc(baseline, positive), *_middle(resampled))


def same_best(a: Float64, b: Float64, group: int) -> float:
    """The share of groups of neighbours with the same best item on both sides; NaN without a whole group."""
    groups = len(a) // group
    if not groups:
        return float("nan")
    best = [x[: groups * group].reshape(groups, group).argmax(axis=1) for x in (a, b)]
    return float((best[0] == best[1]).mean())


def _resamples(positive: Bools, count: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """Draw rows with replacement within each class, so that neither is ever empty."""
    rng = np.random.default_rng(seed)
    classes = np.flatnonzero(positive), np.flatnonzero(~positive)
    return [np.concatenate([rng.choice(rows, len(rows)) for rows in classes]) for _ in range(count)]


def _middle(resampled: list[float]) -> tuple[float, float]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)
