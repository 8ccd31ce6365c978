"""Shared by every measuring script: common options, result files, lines about failures."""

import argparse
import json
from pathlib import Path
from typing import Any

FAILED = "FAILED: "


def arguments(doc: str | None, writes: str, required: bool = True) -> argparse.ArgumentParser:
    """A parser with --out and --commit.

    Args:
        writes: What the script leaves in the directory of --out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=required, metavar="DIR", help=f"directory for {writes}")
    parser.add_argument("--commit", help="commit to record where there is no git history")
    return parser


def by_comma(text: str) -> list[str]:
    """The words of a comma-separated option."""
    return text.split(",")


def write_json(path: Path, results: Any) -> None:
    """Write a result file, and its directory if there is none yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, default=str))


def failed(what: str) -> str:
    """A line about a failure, as the terminal and the report show it."""
    return f"{FAILED}{what}"


def described(error: Exception) -> str:
    """An error as a result file records it."""
    return f"{type(error).__name__}: {error}"
