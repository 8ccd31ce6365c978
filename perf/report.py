"""Write `report.md` into a directory of results: the numbers that readers compare, as tables.

usage: python -m perf.report DIR

The tables hold the columns of `COLUMNS`, of rows that have one of `MEASURED`. A file without such rows is shown
as a list of its first numbers. Everything else is in the JSON files themselves.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MEASURED = (
    "items_per_s", "avg", "p50", "p99", "value", "ratio", "gpu_ms", "launch_ms", "total_ms", "tpot_ms",
    "itl_p99_ms", "ttft_ms", "output_tokens_per_s", "ttft p50", "ttft p99", "tpot mean", "itl p99", "hit_rate",
    "auc", "auc_gain", "largest_difference", "spearman", "flops", "bytes_per_s",
)  # fmt: skip
COLUMNS = ("calls", "failed", "rate", *MEASURED, "unit")
NAMES = ("name", "what", "shape", "dtype")
"""Fields that name a row of a list."""
LISTED = 40


def write(directory: Path) -> Path:
    """Write the report of all results in a directory.

    Raises:
        ValueError: There are none, or a file is not JSON.
    """
    files = {path.name: json.loads(path.read_text("utf-8")) for path in sorted(directory.glob("*.json"))}
    results = {name: found for name, found in files.items() if isinstance(found, dict)}
    if not results:
        raise ValueError(f"{directory} holds no result")
    bench = results.pop("bench.json", {})
    lines = ["# Measurements", ""]
    lines += [
        f"- **FAILED**: {step['name']} ({step['command']})" for step in bench.get("steps", ()) if step["code"]
    ]
    lines += [f"- Not run: {line}" for line in bench.get("not_run", ())]
    for name, found in results.items():
        lines += ["", f"## {name}", "", *_facts(found)]
        lines += list(_tables("", found)) or [f"- {key}: {value}" for key, value in _listed(found)]
    file = directory / "report.md"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _facts(results: Mapping[str, Any]) -> Iterator[str]:
    machine = results.get("machine", {})
    if machine:
        device = machine.get("gpu") or machine.get("cpu")
        yield f"`{machine.get('command')}`, {device}, commit {machine.get('commit')}, {machine.get('time')}"
    yield from (f"- **FAILED**: {line}" for line in results.get("failures", ()))
    yield from (f"- Skipped: {line}" for line in results.get("skipped", ()))


def _tables(title: str, value: Any) -> Iterator[str]:
    """Tables of a value's rows and, below them, of everything deeper."""
    children = list(_children(value))
    every = {name: _cells(child) for name, child in children}
    rows = {name: cells for name, cells in every.items() if cells.keys() & set(MEASURED)}
    shown = [column for column in COLUMNS if any(column in cells for cells in rows.values())]
    if rows:
        yield from ("", f"| {title} | {' | '.join(shown)} |", "|---" * (1 + len(shown)) + "|")
        for name, cells in rows.items():
            yield f"| {name} | {' | '.join(cells.get(column, '') for column in shown)} |"
    for name, child in children:
        if name not in rows:
            yield from _tables(f"{title}: {name}".lstrip(": "), child)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            if isinstance(child, Mapping) and "arms" in child:
                yield f"{key}, {child['unit']}", child["arms"]
            elif isinstance(child, Mapping | list):
                yield str(key), child
    else:
        for index, child in enumerate(value):
            if isinstance(child, Mapping):
                yield str(next((child[name] for name in NAMES if name in child), index)), child


def _cells(row: Any, prefix: str = "") -> dict[str, str]:
    """A row's numbers as text; of a dictionary within it, under both names."""
    cells: dict[str, str] = {}
    for name, value in row.items() if isinstance(row, Mapping) else ():
        if isinstance(value, Mapping) and "low" in value:
            middle = value.get("median", value.get("value"))
            cells[prefix + name] = f"{_number(middle)} [{_number(value['low'])}, {_number(value['high'])}]"
        elif isinstance(value, Mapping) and not prefix:
            cells |= _cells(value, f"{name} ")
        elif not isinstance(value, Mapping | list):
            cells[prefix + name] = _number(value)
    return cells


def _listed(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = {name: child for name, child in _children(results) if name != "machine"}
    nested = [
        (f"{name}, {key}", text) for name, child in found.items() for key, text in _cells(child).items()
    ]
    return [
        *_cells({k: v for k, v in results.items() if k not in found and k != "machine"}).items(),
        *nested,
    ][:LISTED]


def _number(value: Any) -> str:
    """Three significant digits, with a comma every thousand."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    print(write(parser.parse_args().directory))
