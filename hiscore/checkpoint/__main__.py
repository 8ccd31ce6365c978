"""``python -m hiscore.checkpoint [MODEL]``: print a checkpoint's directory, after downloading it if necessary."""

import argparse
import sys

from hiscore.checkpoint import CheckpointError, resolve
from hiscore.settings import DEFAULT_MODEL


def main() -> int:
    """Print the directory to stdout, progress and errors to stderr; returns 0, 1, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m hiscore.checkpoint", description=__doc__)
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL, help="a local directory or a hub id (default: %(default)s)"
    )
    try:
        print(resolve(parser.parse_args().model))
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
