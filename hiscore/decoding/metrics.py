"""The metrics of ``decode``: names, what they mean, and how they follow from the engine's statistics."""

from collections.abc import Callable

from hiscore.decoding.stats import EngineStats
from hiscore.errors import REASONS

# Metric -> (field of EngineStats, help).
COUNTERS = {
    "hiscore_decode_steps_total": ("steps", "Decode steps"),
    "hiscore_decode_step_seconds_total": ("step_seconds", "Seconds that decode steps took on the device"),
    "hiscore_decode_tokens_total": ("tokens", "Tokens generated and sent"),
    "hiscore_decode_prompt_tokens_total": ("prompt_tokens", "Tokens of prompts computed"),
    "hiscore_decode_backed_up_tokens_total": ("backed_up_tokens", "Tokens copied to the host's pool"),
    "hiscore_decode_hits_total": ("hits", "Selected pages that were on the device, per layer and head"),
    "hiscore_decode_misses_total": ("misses", "Selected pages that were not, per layer and head"),
    "hiscore_decode_swap_in_rows_total": ("swap_in_rows", "Rows copied in from the host for the misses"),
    "hiscore_decode_captured_mass_total": ("captured", "Estimated attention mass of what was selected"),
    "hiscore_decode_captured_rows_total": ("captured_rows", "Rows over which that mass was summed up"),
    "hiscore_decode_preemptions_total": ("preemptions", "Sequences that had to make room for others"),
}
GAUGES = {
    "hiscore_decode_waiting": ("waiting", "Calls in the queue"),
    "hiscore_decode_prefilling": ("prefilling", "Sequences whose prompt is being read"),
    "hiscore_decode_running": ("running", "Sequences that get a token in every step"),
    "hiscore_decode_preempted": ("preempted", "Sequences that wait on the host to come back"),
    "hiscore_decode_backup_lag_tokens": ("backup_lag", "Tokens whose copies to the host are under way"),
    "hiscore_decode_host_rows": ("host_rows", "Tokens for which sequences hold room in the host's pool"),
    "hiscore_decode_device_rows": ("device_rows", "Tokens for which sequences hold room in device buffers"),
}


class MetricsFeed:
    """Brings metrics up to date. add: raises counters, set_to: sets gauges, both by name.

    turned_away: raises the counter of calls that were, by the reason.
    """

    def __init__(
        self,
        add: Callable[..., None],
        set_to: Callable[..., None],
        turned_away: Callable[[str, int], None],
    ) -> None:
        self._add, self._set, self._turned_away = add, set_to, turned_away
        self._before = EngineStats()

    def update(self, now: EngineStats) -> None:
        """Count what is new since the last time, and say how it is now."""
        before, self._before = self._before, now
        self._add(
            **{name: getattr(now, field) - getattr(before, field) for name, (field, _) in COUNTERS.items()}
        )
        for reason in REASONS:  # fields of EngineStats as well
            self._turned_away(reason, getattr(now, reason) - getattr(before, reason))
        self._set(**{name: getattr(now, field) for name, (field, _) in GAUGES.items()})


def descriptions(metrics: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Metric -> help."""
    return {name: text for name, (_, text) in metrics.items()}
