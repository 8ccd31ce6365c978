"""Writes the report of a directory of results: one HTML file, and its figures as PNG files.

usage: python -m perf.report.page DIR [--title TITLE]

Reads all results that the measurements of perf/ wrote to DIR; writes DIR/report.html, which is self-contained, and
its figures as DIR/plots/*.png. Exits with 1 if there is nothing to report.
"""

import argparse
import base64
import json
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from perf.report import (
    decoding_section,
    device_section,
    load_section,
    other_sections,
    published_section,
    quality_section,
    scoring_section,
)
from perf.report.parts import Raw, Section, Table
from perf.script import FAILED

SECTIONS: Sequence[Callable[[Raw], Section | None]] = (
    scoring_section.latency,
    load_section.score_load,
    scoring_section.time_of_a_call,
    scoring_section.ablations,
    published_section.published,
    other_sections.peers,
    other_sections.roofline,
    scoring_section.forwards,
    load_section.decode_serving,
    decoding_section.decode,
    decoding_section.floor,
    decoding_section.oversubscribed,
    decoding_section.beside,
    quality_section.quality,
    quality_section.served,
    quality_section.selection,
    device_section.device,
    other_sections.cpu_cost,
    other_sections.provenance,
)

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid #e5e7eb; padding-top: 1rem; }
img { max-width: 100%; display: block; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 12.5px; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.2rem 0.6rem; text-align: left; border-bottom: 1px solid #e5e7eb;
         font-variant-numeric: tabular-nums; }
th { background: #f9fafb; } p.failed { color: #b91c1c; font-weight: 600; } nav { font-size: 13px; }
"""


def read(directory: Path) -> Raw:
    """Read all results of a directory.

    Raises:
        ValueError: There are none, or a file is not JSON.
    """
    results = {}
    for path in sorted(directory.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            results[path.name] = found
    if not results:
        raise ValueError(f"{directory} holds no result")
    log = directory / "perf-analyzer.txt"
    return Raw(results, log.read_text(encoding="utf-8") if log.exists() else "")


def sections(raw: Raw) -> list[Section]:
    """The sections for which there are results."""
    return [section for make in SECTIONS if (section := make(raw))]


def render(title: str, found: Sequence[Section]) -> str:
    """The HTML file; it loads nothing from elsewhere."""
    parts = [
        f'<h2 id="s{index}">{escape(section.title)}</h2>' + _body(section)
        for index, section in enumerate(found)
    ]
    links = " · ".join(f'<a href="#s{index}">{escape(s.title)}</a>' for index, s in enumerate(found))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en>{head}<h1>{escape(title)}</h1>\n<nav>{links}</nav>\n" + "\n".join(
        parts
    )


def _body(section: Section) -> str:
    text = "".join(
        f"<p{' class=failed' if line.startswith(FAILED) else ''}>{escape(line)}</p>" for line in section.text
    )
    images = "".join(
        f'<img alt="{escape(picture.alt)}" src="data:image/png;base64,{base64.b64encode(picture.png).decode()}">'
        for picture in section.figures.values()
    )
    return text + images + "".join(map(_table, section.tables))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def write(directory: Path, title: str | None = None) -> Path:
    """Write the report into the directory itself; returns the HTML file."""
    raw = read(directory)
    found = sections(raw)
    device = next(
        (str(f["machine"].get("gpu") or f["machine"]["cpu"]) for f in raw.results.values() if "machine" in f),
        "",
    )
    plots = directory / "plots"
    plots.mkdir(exist_ok=True)
    for section in found:
        for name, picture in section.figures.items():
            (plots / f"{name}.png").write_bytes(picture.png)
    file = directory / "report.html"
    file.write_text(render(title or f"hiscore on {device or 'an unnamed machine'}", found), encoding="utf-8")
    return file


def main() -> int:
    """Write the report and print its path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--title", help="title (default: names the device)")
    options = parser.parse_args()
    try:
        print(write(options.directory, options.title))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
