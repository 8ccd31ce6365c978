"""Draw the README's chart: scoring by hiscore, SGLang and vLLM on one GPU.

usage: python -m perf.report.peers_chart [--data perf/results/h200-peers/peers.json] [--out docs/images/peers.svg]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
PANELS = {
    "items_per_s": "items/s at saturation\n(higher is better)",
    "one_call_p50_ms": "one call, p50 ms\n(lower is better)",
    "at_70_p99_ms": "70 calls/s, p99 ms\n(lower is better)",
}
OURS, THEIRS = "#2563eb", "#94a3b8"


def draw(systems: dict[str, dict[str, float]]) -> Figure:
    """One panel of bars for each number of `PANELS`.

    Args:
        systems: Numbers by name for each system; those whose name begins with hiscore are drawn in our colour.
    """
    figure = Figure(figsize=(9.6, 2.6), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, len(PANELS), sharey=True))
    names = list(systems)[::-1]
    colours = [OURS if name.startswith("hiscore") else THEIRS for name in names]
    for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
        bars = axes.barh(names, [systems[name][key] for name in names], color=colours)
        axes.bar_label(bars, fmt="{:,.4g}", padding=3)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.18)
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def main() -> None:
    """Read the recorded numbers and write the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "perf/results/h200-peers/peers.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/peers.svg")
    chosen = parser.parse_args()
    recorded: dict[str, Any] = json.loads(chosen.data.read_text())
    # Text stays text, and the same numbers give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hiscore"}):
        draw(recorded["scoring"]["systems"]).savefig(chosen.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
