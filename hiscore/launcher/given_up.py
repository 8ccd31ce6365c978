"""Notice a start that would never end: Triton has given a model up, and waits for its process, which lives.

While a model loads, Triton 2.51 wants a sign of life from its process every second. If one comes late, as on a
machine that stands still for a moment, Triton gives the model up, and says so only when the process has ended. But
the process knows nothing of it, goes on loading, and then waits for calls. (If it has not even read yet what it is
to load, it crashes: Triton has taken that back. Then Triton crashes, too, over its lock.)
"""

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hiscore.launcher.deaths import PROC
from hiscore.launcher.stubs import MODEL

# wait4(2), as the kernel shows the system call that a thread is in.
WAIT = {"x86_64": "61", "aarch64": "260"}.get(platform.machine(), "unknown")
# A process that could not load its model, and has said so, is waited for, too: for the seconds in which it ends.
TOO_LONG_S = 30.0


class GivenUp:
    """Looks at the threads of a server that starts."""

    def __init__(self, server: int, clock: Callable[[], float] = time.monotonic, proc: Path = PROC) -> None:
        self._server, self._clock, self._proc = server, clock, proc
        self._since: dict[int, float] = {}

    def look(self) -> str:
        """Say why the start would not end; empty if it may, or where the kernel does not show it."""
        now = self._clock()
        self._since = {pid: self._since.get(pid, now) for pid in self._awaited()}
        for pid, since in self._since.items():
            if now - since >= TOO_LONG_S:
                return (
                    f"Triton has given up {self._name(pid)} while it loads, for want of a sign of life, and waits "
                    "for the end of its process"
                )
        return ""

    def _awaited(self) -> Iterator[int]:
        """Yield the processes for whose end the server waits."""
        for call in self._proc.glob(f"{self._server}/task/*/syscall"):
            with suppress(OSError):  # the thread has ended, or is not to be seen
                number, *arguments = call.read_text().split()
                if number == WAIT and (self._proc / str(int(arguments[0], 16))).exists():
                    yield int(arguments[0], 16)

    def _name(self, pid: int) -> str:
        command = ""
        with suppress(OSError):
            command = (self._proc / str(pid) / "cmdline").read_text().replace("\0", " ")
        found = MODEL.search(command)
        return f"model {found.group(1)} (pid {pid})" if found else f"a model (pid {pid})"
