"""docs/first-change.md works as written: its tests fail first, then its change makes them pass."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/first-change.md").read_text()
TESTS, CODE, DOCS = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMAND = re.search(r"^\.venv/bin/python (-m pytest .*)$", PAGE, re.MULTILINE)

pytestmark = pytest.mark.slow


def apply(diff: str, tree: Path) -> None:
    """Apply a block of the page to a copy of the repository."""
    done = subprocess.run(["git", "apply", "-"], input=diff, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(tree: Path) -> subprocess.CompletedProcess[str]:
    assert COMMAND
    command = [sys.executable, *COMMAND[1].split(), "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


@pytest.mark.exhaustive
def test_the_change_works_as_written(tmp_path: Path) -> None:
    for name in ("hiscore", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    apply(TESTS, tmp_path)
    failing = run(tmp_path)
    assert failing.returncode == 1, failing.stdout
    assert "unknown parameter 'decimals'" in failing.stdout
    apply(CODE, tmp_path)
    apply(DOCS, tmp_path)
    passing = run(tmp_path)
    assert passing.returncode == 0, passing.stdout
