"""Draw the folders of hiscore/ in the order of their imports, from the contracts in pyproject.toml.

usage: python tools/house.py

Writes a picture to docs/images for each of `HOUSES`. A row is a layer of its contract: folders and files import
from the rows below, neither from each other nor from the rows above. A folder's caption is the first sentence of
its ``__init__.py``.
"""

import ast
import sys
import textwrap
from html import escape
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
HOUSES = {
    "house.svg": "hiscore",
    "house-api.svg": "hiscore.api",
    "house-scoring.svg": "hiscore.scoring",
    "house-decoding.svg": "hiscore.decoding",
}
WIDTH, MARGIN, GAP, LINE = 980, 16, 8, 15
CHARACTER = 7.0
"""Width of a caption's average character."""
MOST_WITH_CAPTIONS = 4
"""Boxes of a row that have room for captions."""
STYLE = (
    "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328;text-anchor:middle}"
    ".n{font-size:14px;font-weight:600}.c{font-size:12px}"
)


def layers(pyproject: str, container: str) -> list[list[str]]:
    """Names of the folders and files of a package that a contract orders, row by row, from the top."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (contract,) = (
        each for each in contracts if each["type"] == "layers" and each["containers"] == [container]
    )
    return [[name.strip() for name in row.split("|")] for row in contract["layers"]]


def caption(folder: Path) -> str:
    """The first sentence of a folder's docstring; empty for a file."""
    init = folder / "__init__.py"
    docstring = ast.get_docstring(ast.parse(init.read_text())) if init.is_file() else None
    return (
        " ".join((docstring or "").split("\n\n")[0].split()).split(". ")[0].removesuffix(".").replace("`", "")
    )


def draw(rows: list[list[str]], package: Path) -> str:
    """Draw one box for each name of a package, as an SVG."""
    parts: list[str] = []
    y = MARGIN
    for row in rows:
        folders = [(package / name).is_dir() for name in row]
        shown = [name + ("/" if is_folder else ".py") for name, is_folder in zip(row, folders, strict=True)]
        # Boxes with captions are of one width, others as wide as their names.
        roomy = len(row) <= MOST_WITH_CAPTIONS and any(folders)
        weights = [1.0 if roomy else len(name) + 3 for name in shown]
        free = WIDTH - 2 * MARGIN - GAP * (len(row) - 1)
        widths = [free * weight / sum(weights) for weight in weights]
        captions = [
            textwrap.wrap(caption(package / name), int(width / CHARACTER)) if roomy else []
            for name, width in zip(row, widths, strict=True)
        ]
        height = 28 + LINE * max(map(len, captions))
        x = float(MARGIN)
        for name, is_folder, width, lines in zip(shown, folders, widths, captions, strict=True):
            middle = f"{x + width / 2:.0f}"
            first = y + height / 2 + 5 - LINE * len(lines) / 2
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6" '
                f'fill="{"#ddf4ff" if is_folder else "#f6f8fa"}" stroke="#8c959f"/>'
            )
            parts.append(f'<text x="{middle}" y="{first:.1f}" class="n">{escape(name)}</text>')
            parts += [
                f'<text x="{middle}" y="{first + LINE * number:.1f}" class="c">{escape(line)}</text>'
                for number, line in enumerate(lines, 1)
            ]
            x += width + GAP
        y += height + GAP
    note = "Imports go downwards, from a row to any row below it. Boxes of one row do not import each other."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 22}" role="img" '
            f'aria-label="The folders of {package.name} in the order of their imports">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{y + 22}" fill="#ffffff"/>',
            *parts,
            f'<text x="{WIDTH // 2}" y="{y + 10}" class="c">{note}</text>',
            "</svg>",
            "",
        ]
    )


def house(container: str) -> str:
    """Draw a package as pyproject.toml orders it."""
    return draw(
        layers((ROOT / "pyproject.toml").read_text(), container), ROOT.joinpath(*container.split("."))
    )


if __name__ == "__main__":
    for picture, package in HOUSES.items():
        (IMAGES / picture).write_text(house(package))
