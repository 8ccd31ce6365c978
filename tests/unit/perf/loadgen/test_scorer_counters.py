"""The scorer's counters, read off its metrics."""

from types import SimpleNamespace
from typing import Any

import pytest

from perf.loadgen import scorer_counters
from perf.loadgen.scorer_counters import counters, items_by_device

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
    waited: list[str] = []
    monkeypatch.setattr(scorer_counters, "wait_for_exports", waited.append)
    monkeypatch.setattr(scorer_counters, "page", lambda url: METRICS)
    server: Any = SimpleNamespace(metrics_url="here")
    assert counters(server) == {"forwards": 3, "calls": 10}
    assert items_by_device(server) == {"cuda:0": 40, "cuda:1": 60}
    assert waited == ["here", "here"]
