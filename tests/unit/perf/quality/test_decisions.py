"""The measures of answers, and the questions they are taken on."""

import numpy as np
import pytest

from perf.quality.decision_tasks import MultipleChoice, Rated
from perf.quality.decisions import GROUP, choice_report, ndcg, rating_report


def test_the_best_order_has_all_of_the_gain() -> None:
    gains = np.arange(2.0 * GROUP)
    assert ndcg(gains, gains) == pytest.approx(1)
    assert ndcg(-gains, gains) < 0.9
    # By hand: a group in which all but one text gain nothing, and that one is last.
    gains = np.zeros(GROUP)
    gains[-1] = 1
    assert ndcg(np.arange(GROUP, 0, -1.0), gains) == pytest.approx(1 / np.log2(GROUP + 1))


def test_flips_are_answers_that_the_order_changes() -> None:
    items = [MultipleChoice("a", "b", ["c", "d"], right) for right in (0, 1)] * 2
    given, turned = np.array([0.8, 0.2]), np.array([0.3, 0.7])
    report = choice_report(items, [[given, given], [given, turned]] * 2)
    assert report["accuracy"] == 0.5
    assert report["flips_when_reversed"] == 0.5
    assert report["probability_moved_when_reversed"] == pytest.approx(0.25)
    assert report["ece"] == pytest.approx(0.3)


def test_ratings_are_ranked_by_the_expected_level() -> None:
    texts = [Rated("a", rating) for rating in np.linspace(-4, 4, 2 * GROUP)]
    levels = [np.eye(5)[round((each.rating + 4) / 2)] for each in texts]
    answers = [[level, np.array([0.9, 0.1] if each.rating > 0 else [0.1, 0.9])] for level, each in zip(
        levels, texts, strict=True)]  # fmt: skip
    report = rating_report(texts, answers)
    # Texts of one level keep their order, which here is the worst.
    assert report["ndcg_of_score"] > 0.95
    backwards = rating_report(texts, [[level[::-1], other] for level, other in answers])
    assert backwards["ndcg_of_score"] < 0.9
    assert report["spearman_of_score"] > 0.9
    assert (report["auc_of_predicate"], report["accuracy_of_predicate"]) == (1, 1)
