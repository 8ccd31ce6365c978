"""From few layers to all of them."""

import pytest

from perf.decoding.closed_loop import ClosedLoop
from perf.decoding.layer_times import Times, fitted, layer_times, summary

REST, ATTENTION, MLP, EXPERTS = 2.0, 0.5, 0.25, 1.5
LOAD = ClosedLoop(30, 5, 8_192, 1_500)


def times(dense: int, routed: int) -> Times:
    """Of a model whose layers take what they are said to; a prompt's last layer computes no MLP."""
    mlps = [MLP] * dense + [EXPERTS] * routed
    attention = ATTENTION * len(mlps)
    return Times(REST + attention + sum(mlps), 100 * (attention + sum(mlps[:-1])), 0.5, 1.0, 0.0)


def test_layers_take_what_they_take() -> None:
    few = {"1": times(1, 0), "3": times(3, 0), "4": times(3, 1)}
    found, whole = layer_times(few, times(3, 8), 8), times(3, 58)
    assert found["step_ms"] == pytest.approx(
        {
            "without experts": ATTENTION + MLP,
            "with experts": ATTENTION + EXPERTS,
            "all": whole.step_ms,
            "embedding, head and sampling": REST,
        }
    )
    assert found["prompt_ms"] == pytest.approx(
        {
            "without experts": 100 * (ATTENTION + MLP),
            "with experts": 100 * (ATTENTION + EXPERTS),
            "all": whole.prompt_ms,
        }
    )


def test_a_load_fits_its_time() -> None:
    # Ten prompts of a second each, 3,000 steps of 10 ms: 40 s.
    slow = Times(10.0, 1_000.0, 0.5, 1.0, 0.0)
    one = ClosedLoop(10, 5, 8_192, 1_500)
    assert fitted(LOAD, slow, 1_000.0) == (one, 3)
    assert fitted(LOAD, slow, 81.0) == (one, 2)
    assert fitted(LOAD, slow, 30.0) == (ClosedLoop(10, 5, 8_192, 1_000), 1)
    assert fitted(LOAD, slow, 1.0) == (ClosedLoop(10, 5, 8_192, 64), 1)


def test_the_slowest_hundredth_is_told_from_the_mean() -> None:
    found = summary([0.001] * 980 + [0.101] * 20)
    assert found["p50"] == pytest.approx(1.0)
    assert found["p99"] == pytest.approx(101.0)
    assert found["mean"] == pytest.approx(3.0)
    assert summary([])["count"] == 0
