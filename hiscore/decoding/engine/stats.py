"""Statistics of decoding, and the metrics that show them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.worker import ForwardResult
from hiscore.decoding.scheduling.scheduler import Scheduler
from hiscore.errors import REASONS

# Metric -> (field of EngineStats, help).
COUNTERS = {
    "hiscore_decode_steps_total": ("steps", "Decode steps"),
    "hiscore_decode_step_seconds_total": ("step_seconds", "Seconds that decode steps took on the device"),
    "hiscore_decode_tokens_total": ("tokens", "Tokens generated and sent"),
    "hiscore_decode_prompt_tokens_total": ("prompt_tokens", "Prompt tokens prefilled"),
    "hiscore_decode_backed_up_tokens_total": ("backed_up_tokens", "Tokens offloaded to the host pool"),
    "hiscore_decode_hits_total": ("hits", "Selected pages that were on the device, per layer and head"),
    "hiscore_decode_misses_total": ("misses", "Selected pages that were not, per layer and head"),
    "hiscore_decode_swap_in_rows_total": ("swap_in_rows", "Rows copied in from the host for the misses"),
    "hiscore_decode_captured_mass_total": ("captured", "Estimated attention mass of the selected tokens"),
    "hiscore_decode_captured_rows_total": ("captured_rows", "Rows over which that mass was summed up"),
    "hiscore_decode_cached_tokens_total": ("cached_tokens", "Prompt tokens found in the prefix cache"),
    "hiscore_decode_cached_on_device_tokens_total": (
        "cached_on_device",
        "Of these, tokens that were still on the device",
    ),
    "hiscore_decode_prefix_hits_total": (
        "prefix_hits",
        "Prompts of which a part was found in the prefix cache",
    ),
    "hiscore_decode_preemptions_total": ("preemptions", "Sequences preempted to make room for others"),
}
GAUGES = {
    "hiscore_decode_waiting": ("waiting", "Calls in the queue"),
    "hiscore_decode_prefilling": ("prefilling", "Sequences whose prompt is being prefilled or resumed"),
    "hiscore_decode_running": ("running", "Sequences that get a token in every step"),
    "hiscore_decode_preempted": ("preempted", "Preempted sequences that wait to be resumed"),
    "hiscore_decode_backup_lag_tokens": ("backup_lag", "Tokens whose offload to the host is in flight"),
    "hiscore_decode_host_rows": ("host_rows", "Tokens for which sequences hold room in the host pool"),
    "hiscore_decode_device_rows": ("device_rows", "Tokens for which sequences hold room in device buffers"),
}


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges of an engine, explained by `COUNTERS` and `GAUGES`.

    `full`, `late` and `cancelled` count calls rejected by a full queue, timed out in it, and cancelled in it.
    """

    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    step_seconds: float = 0.0
    backed_up_tokens: int = 0
    hits: int = 0
    misses: int = 0
    swap_in_rows: int = 0
    captured: float = 0.0
    captured_rows: int = 0
    cached_tokens: int = 0
    cached_on_device: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    full: int = 0
    late: int = 0
    cancelled: int = 0
    waiting: int = 0
    prefilling: int = 0
    running: int = 0
    preempted: int = 0
    backup_lag: int = 0
    host_rows: int = 0
    device_rows: int = 0


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
        )


class StatsFeed:
    """Exports an engine's statistics: `add` raises counters by name, and `set_to` sets gauges."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        add: Callable[..., None],
        set_to: Callable[..., None],
        count_rejections: Callable[[str, int], None],
    ) -> None:
        self._stats = stats
        self._add, self._set, self._count_rejections = add, set_to, count_rejections
        self._before = EngineStats()

    def update(self) -> None:
        """Add to the counters what is new since the last update, and set the gauges."""
        before, now = self._before, self._stats()
        self._before = now
        self._add(
            **{name: getattr(now, field) - getattr(before, field) for name, (field, _) in COUNTERS.items()}
        )
        for reason in REASONS:  # fields of EngineStats as well
            self._count_rejections(reason, getattr(now, reason) - getattr(before, reason))
        self._set(**{name: getattr(now, field) for name, (field, _) in GAUGES.items()})


def descriptions(metrics: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: text for name, (_, text) in metrics.items()}
