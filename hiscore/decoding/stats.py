"""What decoding has done and what it holds, for metrics."""

from dataclasses import dataclass, field, replace
from typing import Literal

from hiscore.decoding.scheduler import Scheduler
from hiscore.decoding.sequence import Stage
from hiscore.decoding.worker.interface import CacheConfig, ForwardResult


@dataclass(frozen=True)
class EngineStats:
    """Counters, then gauges.

    tokens: those sent; prompt_tokens: those prefilled. step_seconds: of steps, on the device. hits, misses: of
    pages, per layer, row and head; swap_in_rows: tokens copied in for the misses. captured: sum of the selected
    attention mass, over as many captured_rows. full, late, cancelled: calls that were turned away before they
    began, and why. waiting: calls in the queue. prefilling: sequences, those being restored among them.
    backup_lag, host_rows, device_rows: tokens; the latter two count what is taken out of the pools.
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

    @property
    def idle(self) -> bool:
        """Whether no sequence waits or holds anything; whatever has started holds room on the host."""
        return not self.waiting and not self.host_rows


@dataclass
class Tally:
    """The counters of one engine: written by its thread, read by any."""

    total: EngineStats = field(default_factory=EngineStats)

    def add(self, result: ForwardResult, cache_config: CacheConfig, tokens: int, prompt_tokens: int) -> None:
        """Count what a launch gave, of which so many tokens were sent; without prompt_tokens it was a step."""
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

    def turn_away(self, reason: Literal["late", "cancelled"]) -> None:
        """Count a call that ended in the queue."""
        self.total = replace(self.total, **{reason: getattr(self.total, reason) + 1})

    def snapshot(self, scheduler: Scheduler, cache_config: CacheConfig) -> EngineStats:
        """The counters, and what the scheduler holds now."""
        pools, count = scheduler.pools, scheduler.count
        return replace(
            self.total,
            preemptions=scheduler.preemptions,
            waiting=count(Stage.WAITING),
            prefilling=count(Stage.PREFILLING, Stage.STAGING),
            running=count(Stage.RUNNING),
            preempted=count(Stage.PREEMPTED),
            backup_lag=self.total.backup_lag if pools.seq_indices.used else 0,
            host_rows=pools.host.used * cache_config.page_size,
            device_rows=pools.device.used * cache_config.page_size,
        )
