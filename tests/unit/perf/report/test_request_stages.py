"""Stages of a call, from perf_analyzer's log and the forward measured alone."""

import pytest

from perf.report import request_stages
from tests.unit.perf.report.made_results import ANALYZER_LOG, RESULTS

FORWARD = RESULTS["forward.json"]


def test_stages_add_up_to_what_the_client_waited() -> None:
    found = request_stages.read(ANALYZER_LOG, FORWARD)
    assert found.keys() == {"one prompt", "one call"}
    assert sum(found["one call"].values()) == pytest.approx(5.615)
    assert sum(found["one prompt"].values()) == pytest.approx(2.5)
    assert found["one call"]["forward, GPU"] == 3.0
    assert found["one call"]["forward, launch and copy"] == 1.0
    assert found["one call"]["execute, outside the forward"] == pytest.approx(1.086)
    assert found["one call"]["Triton, before execute"] == pytest.approx(0.3)
    assert min(value for parts in found.values() for value in parts.values()) > 0


def test_without_a_forward_the_execution_is_one_stage() -> None:
    assert request_stages.read(ANALYZER_LOG, {})["one call"]["execute"] == pytest.approx(5.086)


def test_a_forward_slower_than_the_execution_is_not_subtracted() -> None:
    slow = {"1 x (120 + 10 x 180)": {"gpu_ms": 4.0, "total_ms": 5.087}}
    assert "forward, GPU" not in request_stages.read(ANALYZER_LOG, slow)["one call"]


def test_runs_with_more_calls_in_flight_are_left_out() -> None:
    busy = ANALYZER_LOG.replace("--concurrency-range 1\n", "--concurrency-range 16\n")
    assert request_stages.read(busy, FORWARD) == request_stages.read("", FORWARD) == {}
