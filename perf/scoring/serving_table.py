"""The results of perf.scoring.serving on the terminal; serving.json has all numbers."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from perf.loadgen.window import Point
from perf.script import failed

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


COLUMNS = (
    "",
    "calls",
    "fail",
    "req/s",
    "items/s",
    "avg",
    "p50",
    "p90",
    "p99",
    "late99",
    "fill",
    "GPU",
    "maxdiff",
)


def show(console: Console, points: Sequence[Point], results: dict[str, Any]) -> None:
    """Print a table of all windows, the targets and the failures."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for index, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for p in points:
        busy = "-" if p.gpu_busy is None else f"{p.gpu_busy:.0%}"
        times = [f"{value:.2f}" for value in (p.avg, p.p50, p.p90, p.p99, p.late_p99)]
        table.add_row(
            p.name, str(p.calls), str(p.failed), f"{p.rate:.1f}", f"{p.items_per_s:.0f}", *times,
            f"{p.batch_fill:.0%}", busy, f"{p.max_difference:.0e}",
        )  # fmt: skip
    console.print(table)
    machine = results["machine"]
    lines = [
        "ms from the intended send time; late99: how late the generator sent; fill: of a forward's token budget",
        f"{machine['gpu'] or machine['cpu']}, tritonserver {machine['tritonserver']}, commit {machine['commit']}",
        f"check: {results['check']}",
        f"saturation: {results['saturation']}",
        *results["targets"],
        *(f"left out: {line}" for line in results["skipped"]),
        *map(failed, results["failures"]),
        f"{results['seconds']:.0f} s in all, {len(results['failures'])} steps failed",
    ]
    console.print("\n".join(lines), highlight=False, markup=False)
