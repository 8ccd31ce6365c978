"""From what the LM head computed to scores, in NumPy."""

import numpy as np

from hiscore.arrays import Float32, Float64, Int64
from hiscore.errors import Code, RequestError
from hiscore.scoring.requests.options import ScoreOptions


def scores_from_head(values: Float32, options: ScoreOptions, is_classifier: bool) -> Float32:
    """Turn what the head computed for one request into scores, float32 [items, labels].

    The `values`, of the same shape, are logits, or for a causal LM without `apply_softmax` the scores themselves.
    A classifier's single label gets a sigmoid instead of a softmax. The result may share memory with `values`.

    Raises:
        RequestError: A value is not finite.
    """
    if not np.isfinite(values).all():
        raise RequestError("the model's output is not a finite number", Code.INTERNAL)
    if not options.apply_softmax:
        return values
    exact = values.astype(np.float64)
    if is_classifier and values.shape[1] == 1:
        scores = 0.5 * (1.0 + np.tanh(_tempered(0.5 * exact, options)))  # the sigmoid, without overflow
    else:
        # Less the maximum before the division: the difference of two infinities is not a number.
        exact -= exact.max(axis=1, keepdims=True, initial=-np.inf)
        powers = np.exp(_tempered(exact, options))
        scores = powers / powers.sum(axis=1, keepdims=True)
    narrowed: Float32 = scores.astype(np.float32)
    return narrowed


class PairScores:
    """Scores of items with labels of their own; otherwise like `scores_from_head`."""

    def __init__(self, counts: Int64, columns: int, options: ScoreOptions) -> None:
        """Prepare for items with `counts`, int64 [items], labels each, before the logits are there."""
        self._counts, self._options = counts, options
        self._starts = np.cumsum(counts) - counts
        # Short numbers are compared several times as fast.
        self._is_label = np.arange(columns, dtype=np.int32) < counts.astype(np.int32)[:, None]
        self._is_full = bool(self._is_label.all())

    def of(self, values: Float32) -> Float32:
        """Turn values, float32 [labels of all items], into scores, float32 [items, columns], filled up with 0.

        Raises:
            RequestError: A value is not finite.
        """
        if not np.isfinite(values).all():
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        if self._options.apply_softmax and len(self._counts):
            values = self._softmax(values)
        if self._is_full:
            return values.reshape(self._is_label.shape)
        scores = np.zeros(self._is_label.shape, np.float32)
        scores[self._is_label] = values
        return scores

    def _softmax(self, values: Float32) -> Float32:
        counts, starts = self._counts, self._starts
        powers = values.astype(np.float64)
        powers -= np.repeat(np.maximum.reduceat(values, starts), counts)
        powers = _tempered(powers, self._options)
        np.exp(powers, out=powers)
        # Each segment is summed by itself, in an order that depends on its length alone.
        powers /= np.repeat(np.add.reduceat(powers, starts), counts)
        narrowed: Float32 = powers.astype(np.float32)
        return narrowed


def _tempered(values: Float64, options: ScoreOptions) -> Float64:
    """Values over the temperature. A tiny one makes numbers infinite whose scores are then 0 or 1."""
    if options.temperature == 1.0:
        return values
    with np.errstate(over="ignore"):
        tempered: Float64 = values / options.temperature
    return tempered
