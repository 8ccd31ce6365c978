"""From logits to scores: the last step, in NumPy."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Float32
from hiscore.errors import Code, RequestError
from hiscore.scoring.options import ScoreOptions


def scores_of(
    logits: Float32, log_normaliser: Float32 | None, options: ScoreOptions, is_classifier: bool
) -> Float32:
    """Scores of one call's items, as the contract defines them.

    logits: float32 [items, labels]; log_normaliser: float32 [items], needed for a causal LM without
    `apply_softmax`.

    Raises:
        RequestError: the model gave a number that is not finite.
    """
    _check_finite(logits)
    # Float64 keeps small temperatures from overflowing; what still does is an error.
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
