"""Statistics of decoding, and the metrics that show them."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.worker import ForwardResult
from hiscore.decoding.scheduling.scheduler import Scheduler
from hiscore.errors import REASONS

PREFIX = "hiscore_decode_"
"""Beginning of all metrics' names; those of counters end in `_total`."""


def _metric(name: str, text: str) -> Any:
    """Make a field that is exported by this name, with this help."""
    return field(default=0, metadata={"name": PREFIX + name, "help": text})


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges of an engine.

    `full`, `late` and `cancelled` count calls rejected by a full queue, timed out in it, and cancelled in it.
    """

    steps: int = _metric("steps_total", "Decode steps")
    tokens: int = _metric("tokens_total", "Tokens generated and sent")
    prompt_tokens: int = _metric("prompt_tokens_total", "Prompt tokens prefilled")
    step_seconds: float = _metric("step_seconds_total", "Seconds that decode steps took on the device")
    backed_up_tokens: int = _metric("backed_up_tokens_total", "Tokens offloaded to the host pool")
    hits: int = _metric("hits_total", "Selected pages that were on the device, per layer and head")
    misses: int = _metric("misses_total", "Selected pages that were not, per layer and head")
    swap_in_rows: int = _metric("swap_in_rows_total", "Rows copied in from the host for the misses")
    captured: float = _metric("captured_mass_total", "Estimated attention mass of the selected tokens")
    captured_rows: int = _metric("captured_rows_total", "Rows over which that mass was summed up")
    cached_tokens: int = _metric("cached_tokens_total", "Prompt tokens found in the prefix cache")
    cached_on_device: int = _metric(
        "cached_on_device_tokens_total", "Of these, tokens that were still on the device"
    )
    prefix_hits: int = _metric("prefix_hits_total", "Prompts of which a part was found in the prefix cache")
    preemptions: int = _metric("preemptions_total", "Sequences preempted to make room for others")
    full: int = 0
    late: int = 0
    cancelled: int = 0
    waiting: int = _metric("waiting", "Calls in the queue")
    prefilling: int = _metric("prefilling", "Sequences whose prompt is being prefilled or resumed")
    running: int = _metric("running", "Sequences that get a token in every step")
    preempted: int = _metric("preempted", "Preempted sequences that wait to be resumed")
    backup_lag: int = _metric("backup_lag_tokens", "Tokens whose offload to the host is in flight")
    host_rows: int = _metric("host_rows", "Tokens for which sequences hold room in the host pool")
    device_rows: int = _metric("device_rows", "Tokens for which sequences hold room in device buffers")
    states: int = _metric("states", "States of recurrent layers that sequences hold on the device")
    cached_states: int = _metric("cached_states", "Such states that prompts may find, beside those")


METRICS: dict[str, tuple[str, str]] = {
    each.metadata["name"]: (each.name, each.metadata["help"]) for each in fields(EngineStats) if each.metadata
}
"""Metric -> (field of EngineStats, help)."""
COUNTERS = {name: text for name, (_, text) in METRICS.items() if name.endswith("_total")}
GAUGES = {name: text for name, (_, text) in METRICS.items() if name not in COUNTERS}


@dataclass
class Tally:
    """The counters of one engine: written by its thread, read by any."""

    total: EngineStats = field(default_factory=EngineStats)

    def add(self, result: ForwardResult, cache_config: CacheConfig, tokens: int, prompt_tokens: int) -> None:
        """Count a launch: tokens sent from it, and tokens that it prefilled, 0 for a decode step."""
        t, is_step = self.total, not prompt_tokens
        self.total = replace(
            t,
            steps=t.steps + is_step,
            tokens=t.tokens + tokens,
            prompt_tokens=t.prompt_tokens + prompt_tokens,
            step_seconds=t.step_seconds + (result.seconds if is_step else 0.0),
            backed_up_tokens=t.backed_up_tokens + result.offloaded_tokens,
            hits=t.hits + result.hits,
            misses=t.misses + result.misses,
            swap_in_rows=t.swap_in_rows + result.misses * cache_config.page_size,
            captured=t.captured + result.captured_mass,
            captured_rows=t.captured_rows + result.captured_rows,
            backup_lag=result.offload_lag,
        )

    def count_rejection(self, reason: Literal["late", "cancelled"]) -> None:
        self.total = replace(self.total, **{reason: getattr(self.total, reason) + 1})

    def snapshot(self, scheduler: Scheduler, cache_config: CacheConfig) -> EngineStats:
        """Return the counters, and the scheduler's current state."""
        blocks = scheduler.blocks
        return replace(
            self.total,
            cached_tokens=scheduler.prefix_cache.cached_tokens,
            cached_on_device=scheduler.prefix_cache.cached_on_device,
            prefix_hits=scheduler.prefix_cache.hits,
            preemptions=scheduler.preemptions,
            waiting=len(scheduler.queues.waiting),
            prefilling=len(scheduler.queues.starting),
            running=len(scheduler.queues.running),
            preempted=len(scheduler.queues.preempted),
            backup_lag=self.total.backup_lag if blocks.seq_indices.num_used else 0,
            host_rows=blocks.host.num_used * cache_config.block_tokens,
            device_rows=blocks.device.num_used * cache_config.page_size,
            states=blocks.states.num_used,
            cached_states=blocks.states.num_cached,
        )


@dataclass(frozen=True)
class StatsFeed:
    """Exports an engine's statistics: counters and gauges by name, and rejected calls by reason."""

    stats: Callable[[], EngineStats]
    raise_to: Callable[..., None]
    set_to: Callable[..., None]
    reject: Callable[[str, int], None]

    def update(self) -> None:
        now = self.stats()
        values = {name: getattr(now, field) for name, (field, _) in METRICS.items()}
        self.raise_to(**{name: values[name] for name in COUNTERS})
        for reason in REASONS:  # fields of EngineStats as well
            self.reject(reason, getattr(now, reason))
        self.set_to(**{name: values[name] for name in GAUGES})
