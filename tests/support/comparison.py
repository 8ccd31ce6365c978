"""How close two scores must be, and what they are compared with."""

from functools import cache

import numpy as np

from tests.support.truth import Truth

# What the contract allows between float32 implementations that add in different orders.
TOLERANCE = 1e-4
# Probabilities over 500 tokens are near 0.002, so an absolute bound alone would let anything pass.
RELATIVE = 1e-3
# What the contract allows between one call and the same call in another batch.
INVARIANCE = 2e-5

# Loading transformers' model takes longer than running it.
truth_of = cache(Truth)


def check(found: np.ndarray, truth: np.ndarray, over_vocabulary: bool = False) -> None:
    """Compare scores with the truth; over_vocabulary: they are probabilities of many tokens, so small ones."""
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, atol=TOLERANCE, rtol=0)
    if over_vocabulary:
        np.testing.assert_allclose(found, truth, atol=0, rtol=RELATIVE)
