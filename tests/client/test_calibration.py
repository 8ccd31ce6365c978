"""The fitted temperature is the one that made the answers, and the error of honest answers is small."""

import numpy as np
import pytest

from hiscore_client.calibration import (
    COLDEST,
    HOTTEST,
    Outcome,
    at_temperature,
    fit_temperature,
    log_loss,
    reliability,
)


def drawn(temperature: float, count: int = 8_000, options: int = 4) -> list[Outcome]:
    """Answers whose right option was drawn from the probabilities at a temperature."""
    rng = np.random.default_rng(1)
    outcomes = []
    for row in rng.dirichlet([0.5] * options, count):
        honest = at_temperature(row.tolist(), temperature)
        outcomes.append(Outcome(row.tolist(), int(rng.choice(options, p=honest))))
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_answers_is_found(temperature: float) -> None:
    outcomes = drawn(temperature)
    # Of 8,000 draws the standard error is below 3%.
    fitted = fit_temperature(outcomes)
    assert fitted == pytest.approx(temperature, rel=0.06)
    assert reliability(outcomes, fitted).error < 0.015
    for other in (fitted * 1.05, fitted / 1.05):
        assert log_loss(outcomes, fitted) < log_loss(outcomes, other)


def test_questions_with_fewer_options_than_others_count_by_their_own() -> None:
    outcomes = [*drawn(2.0, 40), *drawn(0.7, 30, options=2), *drawn(3.0, 10, options=7)]
    fitted = fit_temperature(outcomes)
    for other in (fitted * 1.001, fitted / 1.001):
        assert log_loss(outcomes, fitted) < log_loss(outcomes, other)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_control_answers_that_are_too_sure_have_an_error() -> None:
    assert reliability(drawn(3.0)).error > 0.15


def test_a_temperature_changes_no_choice() -> None:
    for row in ([0.1, 0.6, 0.3], [0.0, 1.0, 0.0], [1e-30, 2e-30, 1.0]):
        for temperature in (0.01, 2.0, 100.0):
            scaled = at_temperature(row, temperature)
            assert scaled.argmax() == np.argmax(row)
            assert scaled.sum() == pytest.approx(1)
        assert at_temperature(row, 1.0) == pytest.approx(row, abs=1e-9)


def test_answers_that_know_nothing_or_all_stay_within_bounds() -> None:
    # The bounds themselves, but for what 60 halvings leave.
    assert fit_temperature([Outcome([0.9, 0.1], 0)] * 3) == pytest.approx(COLDEST)
    assert fit_temperature([Outcome([0.9, 0.1], 1)] * 3) == pytest.approx(HOTTEST)
    with pytest.raises(ValueError, match="no answers"):
        fit_temperature([])


def test_bins_count_every_outcome_once() -> None:
    outcomes = [
        Outcome([1.0, 0.0], 0),
        Outcome([0.5, 0.5], 1),
        Outcome([0.3, 0.7], 1),
        Outcome([0.35, 0.65], 0),
    ]
    found = reliability(outcomes, bins=10)
    assert found.counts.tolist() == [0, 0, 0, 0, 1, 0, 2, 0, 0, 1]
    assert found.accuracy[6] == 0.5
    assert found.confidence[6] == pytest.approx(0.675)
    # |0.5 - 0|, 2 |0.675 - 0.5| and 0, over 4
    assert found.error == pytest.approx((0.5 + 0.35) / 4)
