"""Tokens/s while as many sequences run as ever."""

import math

from perf.decoding.steady import Sample, steady


def test_only_intervals_of_steps_with_most_rows_count() -> None:
    samples = [
        Sample(0.0, 0, 0, 0),
        Sample(1.0, 10, 40, 500),  # beside a prompt
        Sample(2.0, 20, 120, 500),  # 8 rows, 80 tokens/s
        Sample(2.5, 20, 120, 500),  # no step
        Sample(3.5, 30, 199, 500),  # 7.9 rows
        Sample(4.5, 60, 229, 500),  # the last one
    ]
    found = steady(samples)
    assert found.tokens_per_s == 159 / 2
    assert found.rows == 159 / 20
    assert found.seconds == 2.0
    # The control: the load as a whole is slower.
    assert samples[-1].tokens / samples[-1].at < found.tokens_per_s


def test_a_load_without_such_an_interval_has_no_rate() -> None:
    assert math.isnan(steady([Sample(0.0, 0, 0, 0), Sample(1.0, 10, 40, 500)]).tokens_per_s)
    assert math.isnan(steady([]).rows)
