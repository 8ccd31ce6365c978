"""An engine in this process under a load."""

import math

import pytest

from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import PLENTY, Arm, build_worker
from perf.decoding.engine_load import Bench, Load, between
from perf.decoding.worker_driver import Driver


def test_gaps_are_taken_while_all_streams_run() -> None:
    gaps = between([[0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 7.0]])
    assert sorted(gaps.tolist()) == [1.0, 1.0]


@pytest.mark.slow
def test_a_bench_measures_a_load(tiny) -> None:
    load = Load(3, 100, 12)
    bench = Bench(
        tiny, Arm("quest", {"selector": "quest", "sparse_top_k": 96, "device_buffer_size": 96}), load
    )
    try:
        run = bench.run()
        assert sum(bench.device_bytes.values()) > 0
    finally:
        bench.close()
    assert 0 < run.tpot_ms <= run.itl_p99_ms
    assert run.rows_per_step <= load.streams
    assert 0 <= run.hit_rate <= 1
    assert not math.isnan(run.tokens_per_s)


@pytest.mark.slow
def test_an_arm_without_backup_leaves_the_host_empty(tiny) -> None:
    """The prompt still goes there; with offload, the generated tokens do as well."""
    full = {}
    for left_out in ("", "backup"):
        arm = Arm("dense", {"selector": "dense"}, left_out)
        worker = build_worker(tiny, arm, MemoryBudget(PLENTY, PLENTY, 1))
        driver = Driver.of_random(worker, tiny, [32])
        driver.steps(5)
        full[left_out] = int((worker._cache.host_kv[0, 1, 0, 0].abs().sum(dim=-1) > 0).sum())
    assert full == {"": 5, "backup": 0}
