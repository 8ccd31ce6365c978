"""`tools/size.py` counts what it says, and notices whatever grows."""

import re

import pytest

from tools import size

SOURCE = '''"""A module.

Two lines more.
"""

LIMIT = 3
"""Of an attribute."""


def double(x: int) -> int:
    """Double a number."""
    text = """no docstring,
    though it has two lines"""
    return x * 2 * bool(text)
'''
FITS = {f"{folder}/a.py": size.Size(10, 1) for folder in size.CEILINGS}


def test_it_counts_lines_and_docstrings() -> None:
    assert size.size(SOURCE) == size.Size(lines=14, docstrings=6)


def test_a_folder_counts_what_is_below_it_and_nothing_beside_it() -> None:
    files = {"perf/a.py": size.Size(1), "perf/b/c.py": size.Size(2, 1), "perfect/d.py": size.Size(4)}
    assert size.below("perf", files) == size.Size(3, 1)


def test_what_fits_is_not_complained_about() -> None:
    assert size.complaints(FITS) == []


@pytest.mark.parametrize(
    ("path", "lines", "says"),
    [
        (
            "hiscore/api/b.py",
            size.Size(size.CEILINGS["hiscore/api"]),
            "hiscore/api/ has .* 10 above its ceiling",
        ),
        ("tests/unit/b.py", size.Size(size.CEILINGS["tests"]), "tests/ has"),
        ("hiscore/api/b.py", size.Size(401), "hiscore/api/b.py has 401 lines"),
        ("hiscore/attic/b.py", size.Size(1), "hiscore/attic/ has no ceiling"),
        ("hiscore/api/b.py", size.Size(300, 200), "lines of docstrings"),
    ],
)
def test_control_growth_is_noticed(path: str, lines: size.Size, says: str) -> None:
    assert any(re.search(says, found) for found in size.complaints({**FITS, path: lines}))


def test_control_a_ceiling_over_nothing_is_noticed() -> None:
    files = {path: lines for path, lines in FITS.items() if not path.startswith("hiscore/api/")}
    assert size.complaints(files) == ["hiscore/api/ has a ceiling, but no line: remove it from tools/size.py"]
