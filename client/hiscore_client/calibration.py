"""Calibration of probabilities: their error, and the temperature that makes it smallest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

BINS = 15
# A probability of 0 is read as this: one sure mistake would otherwise outweigh all else.
LEAST = 1e-12
# A temperature beyond these bounds says that the answers know nothing, or that all of them are right.
COLDEST, HOTTEST = 0.01, 100.0


@dataclass(frozen=True)
class Outcome:
    """One answered question.

    Attributes:
        probabilities: The probability of each of its options.
        answer: The number of the right one.
    """

    probabilities: Sequence[float]
    answer: int


@dataclass(frozen=True)
class Reliability:
    """Outcomes by how sure the answers were.

    Attributes:
        edges: float64 [bins + 1]: where the bins of the likeliest option's probability begin and end.
        counts: int64 [bins].
        confidence: float64 [bins]: means of the likeliest option's probability; 0 in empty bins.
        accuracy: float64 [bins]: shares of right answers; 0 in empty bins.
    """

    edges: Float64
    counts: npt.NDArray[np.int64]
    confidence: Float64
    accuracy: Float64

    @property
    def error(self) -> float:
        """The expected calibration error: how far confidence and accuracy are apart, weighted by the counts."""
        gaps = np.abs(self.confidence - self.accuracy) * self.counts
        return float(gaps.sum() / max(int(self.counts.sum()), 1))


def reliability(outcomes: Sequence[Outcome], temperature: float = 1.0, bins: int = BINS) -> Reliability:
    """Sort outcomes into bins of equal width (Guo et al. 2017, On Calibration of Modern Neural Networks)."""
    edges = np.linspace(0, 1, bins + 1)
    scaled = [at_temperature(each.probabilities, temperature) for each in outcomes]
    top = np.array([row.max() for row in scaled])
    right = np.array([row.argmax() == each.answer for row, each in zip(scaled, outcomes, strict=True)], float)
    place = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    filled = np.maximum(counts, 1)
    confidence, accuracy = (np.bincount(place, each, minlength=bins) / filled for each in (top, right))
    return Reliability(edges, counts, confidence, accuracy)


def log_loss(outcomes: Sequence[Outcome], temperature: float = 1.0) -> float:
    """The mean of -log of the right option's probability."""
    return -float(np.mean([_logs(each.probabilities, temperature)[each.answer] for each in outcomes]))


def fit_temperature(outcomes: Sequence[Outcome]) -> float:
    """The temperature with the least log-loss.

    The loss is convex in 1 / temperature, so its slope is followed to where it is 0.

    Args:
        outcomes: At least one.

    Raises:
        ValueError: There are none.
    """
    if not outcomes:
        raise ValueError("there are no answers to fit a temperature on")
    # In rows of one length: options that a question does not have get no probability.
    logs = np.full((len(outcomes), max(len(each.probabilities) for each in outcomes)), -np.inf)
    for row, each in zip(logs, outcomes, strict=True):
        row[: len(each.probabilities)] = np.log(np.maximum(each.probabilities, LEAST))
    finite = np.where(np.isfinite(logs), logs, 0.0)
    right = logs[np.arange(len(outcomes)), [each.answer for each in outcomes]].sum()

    def slope(inverse: float) -> float:
        powers = np.exp((logs - logs.max(axis=1, keepdims=True)) * inverse)
        expected = (powers * finite).sum(axis=1) / powers.sum(axis=1)
        return float(expected.sum() - right)

    low, high = np.log(1 / HOTTEST), np.log(1 / COLDEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def at_temperature(probabilities: Sequence[float], temperature: float) -> Float64:
    """The probabilities, their logarithms divided by a temperature, adding up to 1 again."""
    powers: Float64 = np.exp(_logs(probabilities, temperature))
    return powers


def _logs(probabilities: Sequence[float], temperature: float) -> Float64:
    logs = np.log(np.maximum(np.asarray(probabilities, float), LEAST)) / temperature
    logs -= logs.max()
    normalised: Float64 = logs - np.log(np.exp(logs).sum())
    return normalised
