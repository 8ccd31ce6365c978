"""The end of a process: its exit code or signal, and the kernel's kills for lack of memory."""

import os
import re
import signal
from pathlib import Path

from hiscore.server.host import control_groups

PROC = Path("/proc")
OUT_OF_MEMORY = (
    "by the kernel, for lack of memory: raise the memory limit, or lower HOST_KV_BYTES or QUERY_CACHE_BYTES"
)


# Where a control group counts its kills, by version.
COUNTS = {1: "memory.oom_control", 2: "memory.events"}


class OomKills:
    """A counter of kills for lack of memory by the kernel: in our control group, or else on this machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = [group / COUNTS[version] for version, group in control_groups(root)]
        self._files.append(root / "proc/vmstat")
        self._before = self._count()

    def risen(self) -> bool:
        """Tell whether it has happened since this object was made."""
        return self._count() > self._before

    def _count(self) -> int:
        for path in self._files:
            try:
                found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
            except OSError:
                continue
            if found:
                return int(found.group(1))
        return 0


def zombie_exit_code(pid: int) -> int | None:
    """The exit code, negative for a signal, of a process that has not been reaped; None if it is not there."""
    try:
        # The name, in parentheses, may hold anything.
        state, *fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if state == "Z" else None


def describe(code: int | None, out_of_memory: bool) -> str:
    """Say how a process ended with an exit code, negative for a signal; None: unknown."""
    by_memory = f", {OUT_OF_MEMORY}" if out_of_memory and code in (None, -signal.SIGKILL) else ""
    if code is None:
        return f"has died{by_memory}"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by signal {-code} ({_signal_name(-code)}){by_memory}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
