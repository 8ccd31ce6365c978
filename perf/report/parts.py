"""What a report consists of, and how it writes numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perf.script import failed

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of text; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure: PNG bytes, and what it shows for those who cannot see it."""

    png: bytes
    alt: str


@dataclass(frozen=True)
class Section:
    """A section of the report: lines of text, tables, and figures by name."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Mapping[str, Picture] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """The results of one directory by file name, and what perf_analyzer printed."""

    results: Mapping[str, Results]
    analyzer_log: str = ""

    def named(self, prefix: str) -> dict[str, Results]:
        """Results whose file names start with `prefix`."""
        return {name: found for name, found in self.results.items() if name.startswith(prefix)}


def number(value: float | None) -> str:
    """Three significant digits, with a comma every thousand; empty without a value."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share (0 to 1) in percent; empty without a value."""
    return "" if value is None else f"{value:.0%}"


def interval(of: Mapping[str, float], middle: str = "median") -> str:
    """A value and its interval; `middle` is the value's key."""
    return f"{of[middle]:.3f} [{of['low']:.3f}, {of['high']:.3f}]"


def shape(of: Mapping[str, int]) -> str:
    """The shape of a call: query + items x item."""
    return f"{of['query']} + {of['items']} x {of['item']}"


def failures(lines: Iterable[str]) -> list[str]:
    """What failed, as highlighted lines."""
    return [failed(line) for line in lines]


def not_run(lines: Iterable[str]) -> list[str]:
    """What was not run, and why."""
    return [f"Not run: {line}" for line in lines]
