"""decode's metrics follow from the engine's statistics."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

from hiscore.decoding.stats import COUNTERS, GAUGES, EngineStats, MetricsFeed
from hiscore.errors import REASONS
from hiscore.launcher.canary import probes


def test_every_statistic_is_a_metric_with_the_contracts_names() -> None:
    shown = [*REASONS, *(field for field, _ in (*COUNTERS.values(), *GAUGES.values()))]
    assert sorted(shown) == sorted(field.name for field in fields(EngineStats))
    assert {
        "hiscore_decode_steps_total",
        "hiscore_decode_tokens_total",
        "hiscore_decode_backed_up_tokens_total",
        "hiscore_decode_swap_in_rows_total",
    } <= set(COUNTERS)
    assert {"hiscore_decode_host_rows", "hiscore_decode_device_rows"} <= set(GAUGES)
    assert all(name.endswith("_total") for name in COUNTERS)


def test_counters_get_what_is_new_and_gauges_what_is() -> None:
    totals, levels = dict.fromkeys(COUNTERS, 0.0), dict.fromkeys(GAUGES, 0.0)

    def add(**amounts: float) -> None:
        for name, amount in amounts.items():
            totals[name] += amount

    turned_away: Counter[str] = Counter()
    feed = MetricsFeed(
        add,
        lambda **values: levels.update(values),
        lambda reason, calls: turned_away.update({reason: calls}),
    )
    stats = EngineStats(steps=3, tokens=5, step_seconds=0.5, running=2, host_rows=64, full=2, late=1)
    feed.update(stats)
    later = replace(stats, steps=7, step_seconds=0.75, running=0, full=3)
    feed.update(later)
    feed.update(later)
    assert totals["hiscore_decode_steps_total"] == 7
    assert totals["hiscore_decode_tokens_total"] == 5
    assert totals["hiscore_decode_step_seconds_total"] == 0.75
    assert turned_away == {"full": 3, "late": 1, "cancelled": 0}
    assert (levels["hiscore_decode_running"], levels["hiscore_decode_host_rows"]) == (0, 64)


def test_a_canary_looks_at_counters_that_there_are_and_that_rise_with_prompts_too(tmp_path: Path) -> None:
    """A prompt may take longer than canaries wait for an answer: a server at work must not be taken for dead."""
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (probe,) = probes(["decode"], tmp_path)
    watched = {COUNTERS[name][0] for name in probe.counters}
    assert {"steps", "prompt_tokens"} <= watched
