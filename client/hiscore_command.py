"""Entry of the command ``hiscore``: an interrupt while its packages are still being imported ends it quietly."""

import signal


def main() -> None:
    """Run the command line."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hiscore_client.cli import load

    run = load()
    signal.signal(signal.SIGINT, handler)
    run()
