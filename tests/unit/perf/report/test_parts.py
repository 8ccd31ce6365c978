"""How a report writes numbers, and what it derives from raw ones."""

import pytest

from perf.report.decoding_section import device_gib
from perf.report.device_section import device
from perf.report.parts import Raw, interval, number, share
from tests.unit.perf.report.made_results import point


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.01234, "0.0123"),
        (99.94, "99.9"),
        (123.4, "123"),
        (999.6, "1,000"),
        (12_345.6, "12,346"),
    ],
)
def test_numbers_have_three_digits_or_all_before_the_point(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_and_intervals() -> None:
    assert (share(None), share(0.125), share(1.0)) == ("", "12%", "100%")
    assert interval({"median": 1.0, "low": 0.5, "high": 2.0}) == "1.000 [0.500, 2.000]"


def test_small_tensors_are_added_up() -> None:
    assert device_gib({"a": 2**30, "b": 2**20, "c": 2**20}) == {"a": 1.0, "the rest": 2**21 / 2**30}


def test_the_device_is_idle_when_it_is_not_busy() -> None:
    busy, none = point("a load", "open", gpu_busy=0.75), point("on a CPU", "open", gpu_busy=None)
    section = device(Raw({"serving.json": {"points": [busy, none]}}))
    assert section is not None
    assert section.tables[0].rows == [("a load (serving)", "25%", "12.5")]
    assert device(Raw({"serving.json": {"points": [none]}})) is None
