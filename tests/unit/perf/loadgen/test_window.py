"""What the load test reads of a server over several devices, and what it makes of it."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perf.loadgen import window as measure
from perf.loadgen.generator import Sample
from perf.loadgen.score_check import check_control
from perf.loadgen.window import WrongScores, counters, items_by_device
from perf.scoring import two_gpus

METRICS = """\
# HELP hiscore_items_total Items scored
hiscore_items_total{device="cuda:0",model="scorer",version="1"} 40
hiscore_items_total{device="cuda:1",model="scorer",version="1"} 60
hiscore_forwards_total{device="cuda:1",model="scorer",version="1"} 3
hiscore_items_total{device="cuda:1",model="other_scorer",version="1"} 7
nv_inference_count{model="scorer",version="1"} 10
nv_inference_count{model="tokenizer",version="1"} 99
"""


def test_counters_are_summed_over_devices_and_items_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_metrics", lambda server: METRICS)
    server: Any = SimpleNamespace()
    assert counters(server) == {"forwards": 3, "calls": 10}
    assert items_by_device(server) == {"cuda:0": 40, "cuda:1": 60}


@pytest.mark.parametrize(
    ("served", "alone", "code"),
    [
        ({"cuda:0": 500, "cuda:1": 500}, ["cuda:0", "cuda:1"], 0),
        ({"cuda:0": 700, "cuda:1": 300}, ["cuda:0", "cuda:1"], 0),
        ({"cuda:0": 800, "cuda:1": 200}, ["cuda:0", "cuda:1"], 1),
        ({"cuda:0": 1000}, ["cuda:0"], 1),
        ({"cuda:0": 500, "cuda:1": 500}, ["cuda:1"], 1),
    ],
)
def test_every_device_must_have_had_its_share(served: dict[str, int], alone: list[str], code: int) -> None:
    assert two_gpus.verdict({"items_by_device": served, "alone": {"devices": alone}}, 2) == code


def test_devices_that_disagree_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good = np.array([[0.2, 0.8], [0.7, 0.3]], np.float32)

    def compare(other: np.ndarray) -> dict[str, Any]:
        answers = {"cuda:0": good, "cuda:1": other}
        monkeypatch.setattr(two_gpus, "answers_by_device", lambda *_: answers)
        return two_gpus.compare_devices(None, [None], 2, tolerance=5e-3)  # type: ignore[arg-type, list-item]

    assert compare(good + 1e-3)["largest_difference"] == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(WrongScores, match="devices differ"):
        compare(good + 1e-2)
    good = np.full((2, 2), 0.5, np.float32)
    with pytest.raises(WrongScores, match="could not see"):
        compare(good)


def test_calls_that_all_score_alike_prove_nothing() -> None:
    samples = [Sample(index, 0.0, scores=np.full((2, 2), 0.5, np.float32)) for index in range(3)]
    with pytest.raises(WrongScores, match="hardly differ"):
        check_control(samples, 1e-3)
    samples[1].scores = np.array([[0.6, 0.4], [0.5, 0.5]], np.float32)
    check_control(samples, 1e-3)


def test_the_environment_is_as_before_a_server_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3,4"):
        if before is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        with two_gpus.visible("3"):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
