"""A histogram's buckets are Prometheus': cumulative, with inclusive bounds."""

from hypothesis import given
from hypothesis import strategies as st

from hiscore.histogram import CALL_SECONDS, TOKEN_SECONDS, Histogram


def test_a_value_is_in_every_bucket_that_it_does_not_exceed() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.0, 0.5, 0.75, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.buckets() == {"0.5": 2, "1": 4, "+Inf": 5}
    assert (histogram.sum, histogram.count) == (9.25, 5)


@given(st.lists(st.floats(0, 1_000)))
def test_buckets_count_what_they_say(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert histogram.buckets() == {
        le: sum(value <= float(le) for value in values) for le in (*map("{:g}".format, CALL_SECONDS), "+Inf")
    }


def test_bounds_rise_and_their_names_are_their_values() -> None:
    for bounds in (CALL_SECONDS, TOKEN_SECONDS):
        assert sorted(set(bounds)) == list(bounds)
        assert [float(le) for le in Histogram(bounds).buckets()][:-1] == list(bounds)
