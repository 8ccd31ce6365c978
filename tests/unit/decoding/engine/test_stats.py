"""Statistics count the results of launches and show the scheduler's state; metrics follow from them."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from hiscore.decoding.engine.stats import COUNTERS, GAUGES, METRICS, EngineStats, StatsFeed, Tally
from hiscore.decoding.interface.worker import ForwardResult
from hiscore.decoding.scheduling.scheduler import Scheduler
from hiscore.decoding.sequence import Status
from hiscore.errors import REASONS
from hiscore.launcher.canary import probes
from tests.support.decode_worker import TINY, preempt_after, sequence_of


def test_every_statistic_is_a_metric_with_the_contracts_names() -> None:
    shown = [*REASONS, *(METRICS[name][0] for name in (*COUNTERS, *GAUGES))]
    assert sorted(shown) == sorted(field.name for field in fields(EngineStats))
    assert {
        "hiscore_decode_steps_total",
        "hiscore_decode_tokens_total",
        "hiscore_decode_backed_up_tokens_total",
        "hiscore_decode_swap_in_rows_total",
    } <= set(COUNTERS)
    assert {"hiscore_decode_host_rows", "hiscore_decode_device_rows"} <= set(GAUGES)
    assert all(name.endswith("_total") for name in COUNTERS)


def test_counters_get_totals_and_gauges_what_is() -> None:
    totals, levels, rejected = (
        dict.fromkeys(COUNTERS, 0.0),
        dict.fromkeys(GAUGES, 0.0),
        dict.fromkeys(REASONS, 0),
    )
    stats = EngineStats(steps=7, tokens=5, step_seconds=0.75, running=2, host_rows=64, full=3, late=1)
    StatsFeed(
        lambda: stats,
        lambda **values: totals.update(values),
        lambda **values: levels.update(values),
        rejected.__setitem__,
    ).update()
    assert totals["hiscore_decode_steps_total"] == 7
    assert totals["hiscore_decode_tokens_total"] == 5
    assert totals["hiscore_decode_step_seconds_total"] == 0.75
    assert rejected == {"full": 3, "late": 1, "cancelled": 0}
    assert (levels["hiscore_decode_running"], levels["hiscore_decode_host_rows"]) == (2, 64)


RESULT = ForwardResult(
    np.zeros(3, np.int32), hits=7, misses=2, seconds=0.5, offloaded_tokens=4, offload_lag=6, captured_mass=1.5,
    captured_rows=3,
)  # fmt: skip


def test_a_step_and_a_prefill_are_counted() -> None:
    tally = Tally()
    tally.add(RESULT, TINY, tokens=3, prompt_tokens=0)
    tally.add(RESULT, TINY, tokens=1, prompt_tokens=20)
    expected = EngineStats(
        steps=1, tokens=4, prompt_tokens=20, step_seconds=0.5, backed_up_tokens=8, hits=14, misses=4,
        swap_in_rows=4 * TINY.page_size, captured=3.0, captured_rows=6, backup_lag=6,
    )  # fmt: skip
    assert tally.total == expected
    tally.count_rejection("late")
    tally.count_rejection("late")
    tally.count_rejection("cancelled")
    assert tally.total == replace(expected, late=2, cancelled=1)


def test_a_snapshot_shows_what_the_scheduler_holds() -> None:
    scheduler = Scheduler(replace(TINY, prefill_token_budget=80), preempt_after(0))
    tally = Tally(EngineStats(steps=9, backup_lag=6))
    nothing = tally.snapshot(scheduler, TINY)
    assert nothing == EngineStats(steps=9)  # nothing is in flight where nothing runs
    for _ in range(9):
        scheduler.add(sequence_of(20, max_tokens=8))
    waiting = tally.snapshot(scheduler, TINY)
    assert (waiting.waiting, waiting.host_rows) == (9, 0)
    scheduler.schedule(lambda seq_index: False)
    (first, second, third, _) = scheduler.queues.admitted
    for sequence, status in ((first, Status.RUNNING), (second, Status.PREEMPTED), (third, Status.PREFILLING)):
        scheduler.queues.move(sequence, status)
    scheduler.preemptions = 5
    now = tally.snapshot(scheduler, TINY)
    assert (now.waiting, now.prefilling, now.running, now.preempted) == (5, 2, 1, 1)
    assert (now.host_rows, now.device_rows) == (4 * 6 * TINY.page_size, 4 * 5 * TINY.page_size)
    assert (now.preemptions, now.backup_lag, now.steps) == (5, 6, 9)


def test_the_hosts_blocks_count_with_all_of_their_tokens() -> None:
    config = replace(TINY, page_size=1, block_size=32, host_pages=160)
    scheduler = Scheduler(config, preempt_after(0))
    scheduler.blocks.host.allocate(3)
    now = Tally().snapshot(scheduler, config)
    assert (now.host_rows, now.device_rows) == (3 * 32, 0)


def test_a_canary_looks_at_counters_that_there_are_and_that_rise_with_prompts_too(tmp_path: Path) -> None:
    """A prompt may take longer than canaries wait for an answer: a server at work must not be taken for dead."""
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (probe,) = probes(["decode"], tmp_path)
    watched = {METRICS[name][0] for name in probe.counters}
    assert {"steps", "prompt_tokens"} <= watched
