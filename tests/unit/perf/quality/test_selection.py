"""What selection costs in quality: the judge can tell."""

import gc
import json
import math

import numpy as np
import pytest
import torch

from perf.quality.selection import Variant, divergence, markdown, measure, variants
from perf.quality.selection_tasks import Task


def test_divergence_is_that_of_the_definition() -> None:
    a, b = torch.tensor([[0.2, 0.8]]), torch.tensor([[0.5, 0.5]])
    expected = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5)
    assert divergence(a.log(), b.log() + 3) == pytest.approx(expected, rel=1e-5)
    assert divergence(a.log(), a.log()) == pytest.approx(0, abs=1e-6)


def test_with_everything_selected_quality_is_that_of_dense(tiny, monkeypatch) -> None:
    """And with little selected it is not: the judge can tell. The page reads well."""
    # Memory matters on a GPU; a collection over all that tests have imported takes most of this test's time.
    monkeypatch.setattr(gc, "collect", lambda: 0)
    rng = np.random.default_rng(0)
    tasks = [Task(f"t{at}", rng.integers(0, 512, 200).astype(np.int32),
                  rng.integers(0, 512, 6).astype(np.int32), 5) for at in range(2)]  # fmt: skip
    chosen = [Variant("dense"), Variant("quest", 512, 16, 1), Variant("quest", 64, 1)]
    dense, everything, little = list(measure(tiny, {"texts": tasks, "pass keys": tasks}, chosen))
    for row, agrees in ((everything, True), (little, False)):
        for task in row["groups"]["texts"]["tasks"]:
            # Float32 sums in another order.
            assert (task["divergence"] < 1e-6) == agrees
    assert little["groups"]["texts"]["hit_rate"] < 1
    machine = {"gpu": None, "cpu": "cpu", "commit": "c", "command": "python"}
    report = {"machine": machine, "model": "tiny", "prompt": 200, "seconds": 1.0,
              "variants": json.loads(json.dumps([dense, everything, little]))}  # fmt: skip
    page = markdown(report)
    assert all(row["name"] in page for row in (dense, everything, little))
    widths = {line.count("|") for line in page.split("## ")[1].splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_variants_differ_by_name_and_the_first_is_the_reference() -> None:
    names = [variant.name for variant in variants()]
    assert names[0] == "dense"
    assert len(set(names)) == len(names)
