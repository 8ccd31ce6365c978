"""Several devices: each had its share, and all give the same scores."""

import os
from typing import Any

import numpy as np
import pytest

from perf.loadgen.window import WrongScores
from perf.scoring import device_answers, two_gpus


@pytest.mark.parametrize(
    ("served", "alone", "ratio", "said"),
    [
        ({"cuda:0": 500, "cuda:1": 500}, ["cuda:0", "cuda:1"], 1.98, []),
        ({"cuda:0": 700, "cuda:1": 300}, ["cuda:0", "cuda:1"], 2.01, []),
        ({"cuda:0": 800, "cuda:1": 200}, ["cuda:0", "cuda:1"], 2.0, ["of 2 devices not all had their share"]),
        ({"cuda:0": 1000}, ["cuda:0"], 2.0, ["of 2 devices not all", "not every device answered"]),
        ({"cuda:0": 500, "cuda:1": 500}, ["cuda:1"], 2.0, ["not every device answered"]),
        ({"cuda:0": 500, "cuda:1": 500}, ["cuda:0", "cuda:1"], 1.979, ["2 devices give 1.979 times"]),
    ],
)
def test_several_devices_must_reach_the_aim_and_each_its_share(
    served: dict[str, int], alone: list[str], ratio: float, said: list[str]
) -> None:
    arms = {"1 device": {"ratio": {"median": 1.0}}, "2 devices": {"ratio": {"median": ratio}}}
    results = {
        "groups": {"devices": {"arms": arms}},
        "aims": {"2 devices": two_gpus.AIMS[2]},
        "items_by_device": {"1 device": {"cuda:0": 1000}, "2 devices": served},
        "alone": {"devices": alone},
    }
    lines = two_gpus.failures(results)
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))
    # A rehearsal has no aims.
    assert not [line for line in two_gpus.failures(results | {"aims": {}}) if "times the items" in line]


def test_devices_that_disagree_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good = np.array([[0.2, 0.8], [0.7, 0.3]], np.float32)

    def compare(other: np.ndarray) -> dict[str, Any]:
        answers = {"cuda:0": good, "cuda:1": other}
        monkeypatch.setattr(device_answers, "answers_by_device", lambda *_: answers)
        return device_answers.compare_devices(None, [None], 2, tolerance=5e-3)  # type: ignore[arg-type, list-item]

    assert compare(good + 1e-3)["largest_difference"] == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(WrongScores, match="devices differ"):
        compare(good + 1e-2)
    good = np.full((2, 2), 0.5, np.float32)
    with pytest.raises(WrongScores, match="could not see"):
        compare(good)


def test_the_environment_is_as_before_a_server_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3,4"):
        if before is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        with two_gpus.visible("3"):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
