"""The report's figures, drawn as PNG bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import ticker
from matplotlib.figure import Figure

from perf.report.parts import Picture, number

COLOURS = ("#2563eb", "#f59e0b", "#dc2626", "#10b981", "#7c3aed", "#64748b", "#db2777", "#0891b2", "#84cc16")
DASHES = ("-", "--", ":", "-.")
"""By which lines differ where colours do not."""
WIDTH = 8.0


class Bar(NamedTuple):
    """A value with its interval; `base` marks the reference of a group."""

    label: str
    value: float
    low: float
    high: float
    base: bool = False


class Roof(NamedTuple):
    """A machine's ceilings: FLOP/s of matrix products, bytes/s of reading memory."""

    label: str
    flops: float
    bytes_per_s: float


class Placed(NamedTuple):
    """Work under a roof: FLOP per byte that must be read, FLOP/s reached."""

    label: str
    intensity: float
    flops: float


def png(figure: Figure) -> bytes:
    """The figure as PNG; the same numbers give the same bytes."""
    buffer = io.BytesIO()
    # Leave out the library's version, or every upgrade would change all committed figures.
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str, log: bool = True
) -> Picture:
    """Draw lines, given by name as xs and ys; `log` makes the y axis logarithmic."""
    figure, axes = _axes(4.0)
    for index, (name, (xs, ys)) in enumerate(lines.items()):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        axes.plot(xs, ys, marker="o", color=colour, ls=dash, label=name)
    if log:
        _logarithmic(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False)
    ends = (f"{name} from {number(ys[0])} to {number(ys[-1])}" for name, (_, ys) in lines.items())
    return Picture(png(figure), f"Lines of {y} over {x}: {', '.join(ends)}.")


def bars(rows: Sequence[Bar], x: str, at_one: bool = True) -> Picture:
    """Draw a horizontal bar with its interval for each row; `at_one` adds a line at 1 for ratios."""
    figure, axes = _axes(0.8 + 0.26 * len(rows))
    ys = range(len(rows))
    errors = [
        [max(0.0, row.value - row.low) for row in rows],
        [max(0.0, row.high - row.value) for row in rows],
    ]
    colours = [COLOURS[5] if row.base else COLOURS[0] for row in rows]
    axes.barh(ys, [row.value for row in rows], color=colours, height=0.7)
    axes.errorbar(
        [row.value for row in rows], ys, xerr=errors, fmt="none", ecolor="#111827", capsize=2.5, lw=1
    )
    for y, row in zip(ys, rows, strict=True):
        axes.annotate(f" {row.value:.3g}", (max(row.value, row.high), y), va="center", fontsize=7)
    axes.set_yticks(ys, [row.label for row in rows], fontsize=8)
    axes.invert_yaxis()
    if at_one:
        axes.axvline(1.0, color="#111827", lw=0.8, ls="--")
    axes.set_xlabel(x)
    values = ", ".join(f"{row.label} {row.value:.3g}" for row in rows)
    return Picture(png(figure), f"Bars of {x}: {values}.")


def stacked(rows: Mapping[str, Mapping[str, float]], x: str) -> Picture:
    """Draw a horizontal bar of named parts for each row; a part has the same colour in all rows."""
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    figure, axes = _axes(1.7 + 0.5 * len(rows))
    longest = max(sum(parts.values()) for parts in rows.values())
    left = [0.0] * len(rows)
    for colour, name in zip(_colours(len(names)), names, strict=True):
        widths = [parts.get(name, 0.0) for parts in rows.values()]
        bar = axes.barh(range(len(rows)), widths, left=left, color=colour, height=0.6, label=name)
        shown = [f"{width:.2f}" if width > 0.05 * longest else "" for width in widths]
        axes.bar_label(bar, shown, label_type="center", fontsize=7, color="white")
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(x)
    axes.legend(frameon=False, fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    sums = ", ".join(f"{label} {number(sum(parts.values()))}" for label, parts in rows.items())
    return Picture(png(figure), f"Bars of {x}, made of {', '.join(names)}: {sums}.")


def roofline(roofs: Sequence[Roof], points: Sequence[Placed]) -> Picture:
    """Draw points under a machine's ceilings on logarithmic axes."""
    figure, axes = _axes(4.2)
    intensities = [point.intensity for point in points] or [1.0]
    knees = [roof.flops / roof.bytes_per_s for roof in roofs]
    low, high = min(*intensities, *knees) / 4, max(*intensities, *knees) * 4
    for colour, roof, knee in zip(_colours(len(roofs)), roofs, knees, strict=True):
        xs = [low, knee, high]
        axes.plot(
            xs, [min(roof.flops, x * roof.bytes_per_s) / 1e12 for x in xs], color=colour, label=roof.label
        )
    for colour, point in zip(_colours(len(points)), points, strict=True):
        label = f"{point.label} ({point.flops / 1e12:.3g} TFLOP/s)"
        axes.plot(point.intensity, point.flops / 1e12, marker="o", ls="none", color=colour, label=label)
    axes.set_xscale("log")
    _logarithmic(axes)
    axes.set_xlabel("FLOP for each byte of weights read")
    axes.set_ylabel("TFLOP/s")
    axes.legend(frameon=False, fontsize=7)
    reached = ", ".join(f"{point.label} {point.flops / 1e12:.3g}" for point in points)
    under = " and ".join(roof.label for roof in roofs)
    return Picture(png(figure), f"TFLOP/s reached over FLOP for each byte read, under {under}: {reached}.")


def _axes(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _logarithmic(axes: Any) -> None:
    """Make the y axis logarithmic."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    # Label some ticks between powers of ten where few powers are visible.
    axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.5, 0.5)))


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
