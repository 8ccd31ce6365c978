"""Count lines of Python against the ceilings that the house sets itself.

usage: python tools/size.py

A folder that grows past its ceiling fails `make lint`. Shorten something, or raise the ceiling here: the diff then
says that the house has grown, and by how much.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CEILINGS = {
    "client": 5_240,
    "perf": 10_250,
    "tests": 63_220,
    "hiscore": 45_000,
    "hiscore/api": 5_080,
    "hiscore/attention": 1_370,
    "hiscore/batching": 980,
    "hiscore/checkpoint": 580,
    "hiscore/decoding": 8_680,
    "hiscore/device": 360,
    "hiscore/edge": 590,
    "hiscore/kernels": 3_420,
    "hiscore/launcher": 2_880,
    "hiscore/layers": 1_680,
    "hiscore/models": 7_380,
    "hiscore/parallel": 730,
    "hiscore/prefill": 860,
    "hiscore/prompts": 2_340,
    "hiscore/recurrence": 730,
    "hiscore/scoring": 4_340,
    "hiscore/server": 750,
    "hiscore/settings": 740,
    "hiscore/tokenization": 1_250,
}
"""Lines of Python by folder, subfolders included."""
DOCSTRING_PERCENT = 17
"""Most lines of hiscore/ in a hundred that are docstrings."""
FILE_LINES = 400
"""Most lines of a file of hiscore/."""


@dataclass(frozen=True)
class Size:
    """Lines of a file or of a folder."""

    lines: int = 0
    docstrings: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.lines + other.lines, self.docstrings + other.docstrings)


def docstrings_of(source: str) -> list[ast.Constant]:
    """Find the docstrings of a module; a string below an attribute is one."""
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def size(source: str) -> Size:
    """Count the lines of a module, and those of its docstrings."""
    docstrings = sum((string.end_lineno or 0) - string.lineno + 1 for string in docstrings_of(source))
    return Size(len(source.splitlines()), docstrings)


def sizes(root: Path) -> dict[str, Size]:
    """Count the files below the folders that have a ceiling, by their path from the root."""
    files = (
        file for top in {folder.split("/")[0] for folder in CEILINGS} for file in (root / top).rglob("*.py")
    )
    return {file.relative_to(root).as_posix(): size(file.read_text()) for file in sorted(files)}


def below(folder: str, files: dict[str, Size]) -> Size:
    """Add up the files of a folder."""
    return sum((file for path, file in files.items() if path.startswith(f"{folder}/")), Size())


def complaints(files: dict[str, Size]) -> list[str]:
    """Name whatever is above its ceiling, and every folder directly below hiscore/ that has none."""
    found = []
    for folder in sorted({"/".join(path.split("/")[:2]) for path in files if path.count("/") > 1}):
        if folder.startswith("hiscore/") and folder not in CEILINGS:
            found.append(f"{folder}/ has no ceiling: add it to tools/size.py")
    for folder, most in CEILINGS.items():
        lines = below(folder, files).lines
        if lines > most:
            found.append(f"{folder}/ has {lines:,} lines, {lines - most:,} above its ceiling of {most:,}")
        if lines == 0:
            found.append(f"{folder}/ has a ceiling, but no line: remove it from tools/size.py")
    for path, file in files.items():
        if path.startswith("hiscore/") and file.lines > FILE_LINES:
            found.append(f"{path} has {file.lines} lines, above {FILE_LINES}: a file is one idea")
    whole = below("hiscore", files)
    if 100 * whole.docstrings > DOCSTRING_PERCENT * whole.lines:
        found.append(f"hiscore/ has {whole.docstrings:,} lines of docstrings, above {DOCSTRING_PERCENT}%")
    return found


def main() -> int:
    """Print the size of each folder that has a ceiling, then the complaints."""
    files = sizes(ROOT)
    for folder, most in CEILINGS.items():
        whole = below(folder, files)
        share = whole.docstrings / max(whole.lines, 1)
        print(f"{folder:22}{whole.lines:7,} of {most:6,} lines, {share:4.0%} docstrings")
    found = complaints(files)
    for complaint in found:
        print(f"size: {complaint}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
