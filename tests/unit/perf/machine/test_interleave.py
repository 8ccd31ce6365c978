"""Medians, their intervals, and arms that take turns."""

import numpy as np
import pytest

from perf.machine.interleave import interleave, spread


@pytest.mark.parametrize("count", [6, 7, 9, 15])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    """95% of 1,000 less 2.9 standard deviations are 930; an interval one value narrower holds 88% at most."""
    samples = np.sort(np.random.default_rng(count).exponential(1.0, (1_000, count)), axis=1)
    held = narrower = 0
    for ordered in samples.tolist():
        found = spread(ordered)
        held += found.low <= np.log(2) <= found.high
        narrower += (
            ordered[ordered.index(found.low) + 1] <= np.log(2) <= ordered[ordered.index(found.high) - 1]
        )
    assert narrower < 930 <= held


def test_arms_take_turns_and_a_ratio_is_taken_within_a_round() -> None:
    order: list[str] = []
    clock = iter(range(1, 100))

    def arm(name: str, factor: float):
        def run() -> float:
            order.append(name)
            return factor * 2.0 ** ((next(clock) - 1) // 2)  # the machine slows down from round to round

        return run

    found = interleave({"a": arm("a", 1.0), "b": arm("b", 3.0)}, 4)
    assert "".join(order) == "abbaabba"
    assert (found["b"].ratio.median, found["b"].ratio.low, found["b"].ratio.high) == (3, 3, 3)
    assert found["a"].value.median == 3  # of 1, 2, 4, 8
    assert found["a"].ratio.median == 1
