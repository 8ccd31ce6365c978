"""The results of perf.scoring.serving on the terminal; serving.json has all numbers."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from perf.loadgen.window import Point
from perf.script import failed

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
