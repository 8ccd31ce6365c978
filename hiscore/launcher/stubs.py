"""The processes of a tritonserver's models: which have died, and how, and which have been stopped.

Triton 2.51 notices neither: a dead or stopped model stays ready, and its calls fail or hang.
"""

import re
import time
from collections.abc import Callable

import psutil

from hiscore.launcher.deaths import OomKills, describe, exit_code, zombie_status

# A debugger stops processes for a moment, too.
STOPPED_TOO_LONG_S = 2.0
MODEL = re.compile(r"/([^/]+)/\d+/model\.py")


class Stubs:
    """Keeps track of the child processes of a server."""

    def __init__(self, server: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._names: dict[int, str] = {}
        self._lost: dict[int, str] = {}
        self._stopped: dict[int, float] = {}
        self._oom_kills = OomKills()

    @property
    def lost(self) -> bool:
        """Tell whether a child has died, as of the last `look`."""
        return bool(self._lost)

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
            return f"the process of {self._name(pid)} {end}; see its log above"
        for pid, since in self._stopped.items():
            if self._clock() - since >= STOPPED_TOO_LONG_S:
                return f"the process of {self._name(pid)} has been stopped by a signal: it answers no calls"
        return ""

    def _see(self, child: psutil.Process) -> None:
        pid, status = child.pid, child.status()
        if status == psutil.STATUS_ZOMBIE:
            if pid in self._names and pid not in self._lost:
                self._lost[pid] = describe(exit_code(zombie_status(pid)), self._oom_kills.risen())
            return
        if not self._names.get(pid):
            # A process that has just been forked still has its parent's command line.
            found = MODEL.search(" ".join(child.cmdline()))
            self._names[pid] = found.group(1) if found else ""
        if status == psutil.STATUS_STOPPED:
            self._stopped.setdefault(pid, self._clock())
        else:
            self._stopped.pop(pid, None)

    def _name(self, pid: int) -> str:
        return f"model {self._names[pid]} (pid {pid})" if self._names.get(pid) else f"a model (pid {pid})"
