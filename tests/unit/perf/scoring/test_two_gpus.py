"""Several devices: each had its share, and all give the same scores."""

import os
from typing import Any

import numpy as np
import pytest

from perf.loadgen.window import WrongScores
from perf.scoring import two_gpus


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


def test_the_environment_is_as_before_a_server_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3,4"):
        if before is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        with two_gpus.visible("3"):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
