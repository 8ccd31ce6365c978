"""The project's targets for Qwen3-0.6B's geometry on one H200, and whether a run met them."""

from collections.abc import Sequence
from typing import Any

from perf.loadgen.window import Point

SATURATION_P99_MS = 500


def saturation(points: Sequence[Point]) -> dict[str, Any] | None:
    """The window with the most items a second whose p99 is within the bound and in which no call failed."""
    fit = [
        p
        for p in points
        if p.group in ("open", "closed") and p.p99 < SATURATION_P99_MS and not p.failed
    ]  # fmt: skip
    if not fit:
        return None
    best = max(fit, key=lambda p: p.items_per_s)
    return {"window": best.name, "items_per_s": best.items_per_s, "p99": best.p99, "gpu_busy": best.gpu_busy}


def verdicts(points: Sequence[Point], text_cost: float | None) -> list[str]:
    """A line for each target whose window was measured."""
    by_name = {point.name: point for point in points}
    lines = []
    for name, field, bound in (
        ("alone 300 + 1 x 0", "p50", 3.0),
        ("alone 300 + 1 x 0, perf_analyzer", "p50", 3.0),
        ("alone 120 + 10 x 180", "p50", 5.5),
        ("alone 120 + 10 x 180, perf_analyzer", "p50", 5.5),
        ("Poisson 70/s", "avg", 7.0),
        ("Poisson 70/s", "p99", 15.0),
    ):
        if name in by_name:
            value = getattr(by_name[name], field)
            lines.append(f"{name}: {field} {value:.2f} ms, target {bound:g}: {_met(value <= bound)}")
    if best := saturation(points):
        value = best["items_per_s"]
        lines.append(
            f"saturation: {value:.0f} items/s, target 3000: {_met(value >= 3000)}, 2660: {_met(value >= 2660)}"
        )
    if text_cost is not None:
        lines.append(f"text instead of ids: {text_cost:.1%} fewer, target 10%: {_met(text_cost < 0.1)}")
    return lines


def _met(met: bool) -> str:
    return "met" if met else "MISSED"
