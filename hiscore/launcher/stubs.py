"""The processes of a tritonserver's models: which have died, and how, which were stopped, and which are given up.

Triton 2.51 notices neither of the first: a dead or stopped model stays ready, and its calls fail or hang.
"""

import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from hiscore.launcher.deaths import PROC, OomKills, describe, zombie_exit_code

# A debugger stops processes for a moment, too.
STOPPED_TOO_LONG_S = 2.0
# wait4(2), as the kernel shows the system call that a thread is in.
WAIT = {"x86_64": "61", "aarch64": "260"}.get(platform.machine(), "unknown")
# A process that could not load its model, and has said so, is waited for, too: for the seconds in which it ends.
TOO_LONG_S = 30.0
MODEL = re.compile(r"/([^/]+)/\d+/model\.py")


class Stubs:
    """Keeps track of the child processes of a server."""

    def __init__(self, server: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._names: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self._stopped: dict[int, float] = {}
        self._oom_kills = OomKills()

    def look(self) -> None:
        """Look which children live. One that has started and died since the last look goes unnoticed."""
        try:
            alive = {child.pid: child for child in psutil.Process(self._server).children()}
        except psutil.NoSuchProcess:
            return
        for pid, child in list(alive.items()):
            try:
                self._see(child)
            except psutil.NoSuchProcess:  # ended since it was listed
                del alive[pid]
        for pid in self._names.keys() - alive.keys() - self._lost.keys():
            self._lost[pid] = describe(None, self._oom_kills.risen())

    def fault(self) -> str:
        """Say what is wrong with the children, as of the last `look`; empty if nothing is."""
        for pid, end in self._lost.items():
            return f"the process of {named(pid, self._names[pid])} {end}; see its log above"
        for pid, since in self._stopped.items():
            if self._clock() - since >= STOPPED_TOO_LONG_S:
                name = named(pid, self._names[pid])
                return f"the process of {name} has been stopped by a signal: it answers no calls"
        return ""

    def _see(self, child: psutil.Process) -> None:
        pid, status = child.pid, child.status()
        if status == psutil.STATUS_ZOMBIE:
            if pid in self._names and pid not in self._lost:
                self._lost[pid] = describe(zombie_exit_code(pid), self._oom_kills.risen())
            return
        if not self._names.get(pid):
            # A process that has just been forked still has its parent's command line.
            self._names[pid] = model_in(" ".join(child.cmdline()))
        if status == psutil.STATUS_STOPPED:
            self._stopped.setdefault(pid, self._clock())
        else:
            self._stopped.pop(pid, None)


def model_in(command: str) -> str:
    """Find the model that a stub's command line names; empty: none."""
    found = MODEL.search(command)
    return found.group(1) if found else ""


def named(pid: int, model: str) -> str:
    return f"model {model} (pid {pid})" if model else f"a model (pid {pid})"


class GivenUp:
    """Notices a start that would never end: Triton has given a model up, and waits for its process, which lives.

    While a model loads, Triton 2.51 wants a sign of life from its process every second. If one comes late, as on a
    machine that stands still for a moment, Triton gives the model up, and says so only when the process has ended.
    But the process knows nothing of it, goes on loading, and then waits for calls. (If it has not even read yet
    what it is to load, it crashes: Triton has taken that back. Then Triton crashes, too, over its lock.)
    """

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
        return named(pid, model_in(command))
