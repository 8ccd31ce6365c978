"""The command ``hiscore``."""

import sys
from collections.abc import Callable
from typing import Any

EXTRA_MISSING = "hiscore: the command line needs its extra: pip install './client[cli]' in a checkout"


def load() -> Callable[[], Any]:
    """Import the command line; if the packages of its extra are missing, say how to install them, and exit."""
    try:
        from hiscore_client.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"rich", "typer"}:
            raise
        sys.exit(EXTRA_MISSING)
    return app


def main() -> None:
    """Run the command line."""
    load()()
