"""Calls after pauses."""

from pathlib import Path

import numpy as np

from hiscore.scoring.scorer import Scorer
from perf.loadgen.load_plan import CPU
from perf.loadgen.scorer_calls import draw
from perf.scoring.after_idle import PAUSES_MS, measure, wait_awake, waits
from tests.support import tiny_models


def test_each_pause_of_each_kind_is_measured(tmp_path: Path) -> None:
    tiny_models.make("qwen3", tmp_path)
    drawn = draw(np.random.default_rng(0), CPU.request, 3, CPU.vocabulary, CPU.labels)
    calls = [call.request() for call in drawn]
    found = measure(Scorer(tmp_path, "cpu", query_cache_bytes=0), calls, "cpu", rounds=1)
    assert {way: list(pauses) for way, pauses in found.items()} == {
        way: [str(pause) for pause in PAUSES_MS["cpu"]] for way in waits("cpu")
    }
    assert all(0 < each["gpu_ms"] == each["call_ms"] for pauses in found.values() for each in pauses.values())


def test_something_is_done_meanwhile_only_in_a_pause_that_is_long_enough() -> None:
    done: list[None] = []
    wait_awake(0.0, lambda: done.append(None))
    assert not done
    wait_awake(0.01, lambda: done.append(None))
    assert done
