"""From logits to scores, in NumPy."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Float32
from hiscore.errors import Code, RequestError
from hiscore.scoring.options import ScoreOptions


def scores_from_logits(
    logits: Float32, log_normaliser: Float32 | None, options: ScoreOptions, is_classifier: bool
) -> Float32:
    """Turn the logits of one request into scores.

    Args:
        logits: float32 [items, labels].
        log_normaliser: float32 [items]: log(sum(exp(logits))) over the whole vocabulary; needed for a causal LM
            without `apply_softmax`.
        options: Softmax over the labels, and its temperature.
        is_classifier: The labels are the model's own; a single one gets a sigmoid instead of a softmax.

    Returns:
        float32 [items, labels].

    Raises:
        RequestError: A logit or a score is not finite.
    """
    _check_finite(logits)
    # float64, so that few temperatures overflow; those that do are an error.
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = logits.astype(np.float64) / options.temperature
        if options.apply_softmax:
            if is_classifier and logits.shape[1] == 1:
                scores = 0.5 * (1.0 + np.tanh(0.5 * scaled))  # the sigmoid, without overflow
            else:
                powers = np.exp(scaled - scaled.max(axis=1, keepdims=True, initial=-np.inf))
                scores = powers / powers.sum(axis=1, keepdims=True)
        elif is_classifier:
            scores = scaled
        else:
            assert log_normaliser is not None
            scores = np.exp(scaled - log_normaliser[:, None])
    _check_finite(scores)
    narrowed: Float32 = scores.astype(np.float32)
    return narrowed


def _check_finite(values: npt.NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        raise RequestError("the model's output is not a finite number", Code.INTERNAL)
