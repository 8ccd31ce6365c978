"""The command ``hiscore``."""

import sys

EXTRA_MISSING = "hiscore: the command line needs its extra: pip install 'hiscore-client[cli]'"


def main() -> None:
    """Run the command line; if the packages of its extra are missing, say how to install them."""
    try:
        from hiscore_client.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"rich", "typer"}:
            raise
        sys.exit(EXTRA_MISSING)
    app()
