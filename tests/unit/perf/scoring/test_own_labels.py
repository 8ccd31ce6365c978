"""The calls that show what labels of their own cost."""

import numpy as np

from perf.scoring.own_labels import LEAST, MOST, Shape, as_request, make_calls


def test_both_arms_have_the_same_items_and_own_labels_span_the_range() -> None:
    calls = make_calls(np.random.default_rng(0), Shape(7, 400, 2))
    shared, own = as_request(calls["shared"]), as_request(calls["own"])
    np.testing.assert_array_equal(shared.prompt.tokens, own.prompt.tokens)
    np.testing.assert_array_equal(shared.prompt.item_lengths, own.prompt.item_lengths)
    assert shared.label_counts is None
    assert own.label_counts is not None
    assert LEAST <= own.label_counts.min() < 10
    assert 240 < own.label_counts.max() <= MOST
    assert own.label_counts.sum() == len(own.labels)
    for first, count in zip(np.cumsum(own.label_counts) - own.label_counts, own.label_counts, strict=True):
        assert len(set(own.labels[first : first + count].tolist())) == count
