"""From what the LM head computed to scores, in NumPy."""

import numpy as np

from hiscore.arrays import Float32, Float64, Int64
from hiscore.errors import Code, RequestError
from hiscore.scoring.requests.options import ScoreOptions


def scores_from_head(values: Float32, options: ScoreOptions, is_classifier: bool) -> Float32:
    """Turn what the head computed for one request into scores, float32 [items, labels].

    The `values`, of the same shape, are logits, or for a causal LM without `apply_softmax` the scores themselves.
    A classifier's single label gets a sigmoid instead of a softmax. The result may share memory with `values`.
    """
    if not np.isfinite(values).all():
        raise RequestError("the model's output is not a finite number", Code.INTERNAL)
    if not options.apply_softmax:
        return values
    exact = values.astype(np.float64)
    if is_classifier and values.shape[1] == 1:
        scores = _sigmoid(_tempered(0.5 * exact, options), options)
    else:
        # Less the maximum before the division: the difference of two infinities is not a number.
        exact -= exact.max(axis=1, keepdims=True, initial=-np.inf)
        exact = _tempered(exact, options)
        powers = np.exp(exact)
        totals = powers.sum(axis=1, keepdims=True)
        scores = exact - np.log(totals) if options.log_scores else powers / totals
    return _narrowed(scores)


class PairScores:
    """Scores of items with labels of their own; otherwise like `scores_from_head`."""

    def __init__(
        self, counts: Int64, columns: int, options: ScoreOptions, are_classifiers: bool = False
    ) -> None:
        """Prepare for items with `counts`, int64 [items], labels each, before the logits are there.

        A classifier's single label gets a sigmoid.
        """
        self._counts, self._options, self._are_classifiers = counts, options, are_classifiers
        self._starts = np.cumsum(counts) - counts
        # Short numbers are compared several times as fast.
        self._is_label = np.arange(columns, dtype=np.int32) < counts.astype(np.int32)[:, None]
        self._is_full = bool(self._is_label.all())

    def of(self, values: Float32) -> Float32:
        """Turn values, float32 [labels of all items], into scores, float32 [items, columns], filled up with 0."""
        if not np.isfinite(values).all():
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        if self._options.apply_softmax and len(self._counts):
            values = self._softmax(values)
        return self._filled(values)

    def of_logs(self, logs: Float64) -> Float32:
        """Turn the logarithms of labels' probabilities, float64 [labels of all items], into scores like `of`."""
        if self._options.apply_softmax and len(self._counts):
            return self._filled(self._softmax(logs))
        return self._filled((logs if self._options.log_scores else np.exp(logs)).astype(np.float32))

    def _filled(self, values: Float32) -> Float32:
        if self._is_full:
            return values.reshape(self._is_label.shape)
        scores = np.zeros(self._is_label.shape, np.float32)
        scores[self._is_label] = values
        return scores

    def _softmax(self, values: Float32 | Float64) -> Float32:
        counts, starts = self._counts, self._starts
        alone = starts[counts == 1] if self._are_classifiers else starts[:0]
        half = _tempered(0.5 * values[alone].astype(np.float64), self._options)
        powers = values.astype(np.float64)
        powers -= np.repeat(np.maximum.reduceat(values, starts), counts)
        exact = _tempered(powers, self._options)
        powers = np.exp(exact)
        # Each segment is summed by itself, in an order that depends on its length alone.
        totals = np.repeat(np.add.reduceat(powers, starts), counts)
        scores = exact - np.log(totals) if self._options.log_scores else powers / totals
        scores[alone] = _sigmoid(half, self._options)
        return _narrowed(scores)


def _sigmoid(half: Float64, options: ScoreOptions) -> Float64:
    """The sigmoid of logits, given half of each, without overflow."""
    found: Float64 = -np.logaddexp(0.0, -2.0 * half) if options.log_scores else 0.5 * (1.0 + np.tanh(half))
    return found


def _tempered(values: Float64, options: ScoreOptions) -> Float64:
    """Values over the temperature. A tiny one makes numbers infinite whose scores are then 0 or 1."""
    if options.temperature == 1.0:
        return values
    with np.errstate(over="ignore"):
        tempered: Float64 = values / options.temperature
    return tempered


def _narrowed(scores: Float64) -> Float32:
    """Scores in float32; the logarithm of one that is 0 is the least number, since JSON has no infinity."""
    return np.maximum(scores, np.finfo(np.float32).min).astype(np.float32)
