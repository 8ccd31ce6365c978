"""Quality through the server: reviews in another order, or one of them off, do not pass."""

import numpy as np
import pytest

from perf.quality.text_scores import compare

POSITIVE = np.arange(20) % 2 == 0
SCORES = np.linspace(0.1, 0.9, 20) * np.where(POSITIVE, 1.0, 0.4)


def test_equal_scores_agree() -> None:
    found = compare(SCORES, SCORES + 1e-6, POSITIVE, 2e-5)
    assert found["largest_difference"] == pytest.approx(1e-6)
    assert found["spearman"] == found["same_best_of_ten"] == 1
    assert found["auc"]["low"] <= found["auc"]["value"] <= found["auc"]["high"]
    assert found["auc_gain"]["value"] == 0


@pytest.mark.parametrize("wrong", [np.roll(SCORES, 1), SCORES[::-1], np.where(SCORES > 0.8, np.nan, SCORES)])
def test_wrong_scores_fail(wrong: np.ndarray) -> None:
    with pytest.raises(SystemExit, match="is off by"):
        compare(SCORES, wrong, POSITIVE, 2e-5)


def test_one_review_off_fails() -> None:
    off = SCORES.copy()
    off[7] += 1e-3
    with pytest.raises(SystemExit, match=r"is off by 0\.001"):
        compare(off, SCORES, POSITIVE, 2e-5)


def test_scores_that_are_all_alike_prove_nothing() -> None:
    alike = np.full(20, 0.5) + 1e-6 * np.arange(20)
    with pytest.raises(SystemExit, match="could not see"):
        compare(alike, alike, POSITIVE, 2e-5)
