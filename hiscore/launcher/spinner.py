"""The processes that keep cores awake beside a server: the setting SPIN.

A core that idles halts, and waking it takes up to some tenths of a millisecond in a virtual machine. A call pays
that for most of the threads that it passes: gRPC's, Triton's, the model's, and back. None of them can be told to
wait awake, so what is kept awake are the cores.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from hiscore.launcher import spin
from hiscore.launcher.child import start_child


class Spinner:
    """Processes in a group of their own; they end when the thread that creates this object does."""

    def __init__(self, milliseconds: int, directory: Path, server: int) -> None:
        """Start them.

        Args:
            milliseconds: How long they spin after the last work.
            directory: The server's own, where its models have made their boards.
            server: Its process id.
        """
        boards = [str(path) for path in sorted(directory.glob(f"loads-*-{server}"))]
        self._popen = start_child(
            [sys.executable, "-I", "-S", spin.__file__, str(milliseconds / 1e3), *boards]
        )

    @property
    def pid(self) -> int:
        """The process id of the first, and of the group of all."""
        return self._popen.pid

    def close(self) -> None:
        """End them."""
        os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        # As the first process of a container we inherit the others and have to reap them.
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-self._popen.pid, 0)
