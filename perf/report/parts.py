"""What a report is made of, and how it writes numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """figures: PNG bytes by name."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """The files of one directory: results by file name, and what perf_analyzer printed."""

    results: Mapping[str, Results]
    analyzer_log: str = ""

    def named(self, prefix: str) -> dict[str, Results]:
        """Results whose file names begin so."""
        return {name: found for name, found in self.results.items() if name.startswith(prefix)}


def number(value: float | None) -> str:
    """Three digits that count, thousands apart."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    """A share from 0 to 1 in percent."""
    return "" if value is None else f"{value:.0%}"


def interval(of: Mapping[str, float], middle: str = "median") -> str:
    """A value and its interval."""
    return f"{of[middle]:.3f} [{of['low']:.3f}, {of['high']:.3f}]"


def shape(of: Mapping[str, int]) -> str:
    """A request's shape."""
    return f"{of['query']} + {of['items']} x {of['item']}"
