"""Processes beside this one that end when it does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from hiscore.server import die_with_parent

POLL_SECONDS = 0.05
# In which children end whose parent has: stubs look for their server every 0.3 seconds.
GROUP_SECONDS = 5.0
# Not a session of its own: Linux shares processors between sessions (autogroup), and what keeps cores awake in the
# class SCHED_IDLE (docs/operations.md) is below the server only in the server's session.
APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class Child:
    """A command in a process group of its own, so that a Ctrl-C reaches it only through us.

    It gets a SIGTERM when the thread that creates this object ends, has large stacks, and may write to our
    terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the command.

        Args:
            environment: All of its variables; None: ours.
            log_path: File to append its output to; None: our standard error.
            pass_fds: File descriptors that it and its children keep open.
        """
        wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        with open(log_path, "ab") if log_path else nullcontext(sys.stderr) as log:
            self._popen = subprocess.Popen(
                [*wrapper, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
                **APART,
            )

    @property
    def pid(self) -> int:
        """The process id, and the id of the process group of its children."""
        return self._popen.pid

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._popen.poll()

    def stop(self, drain_s: float) -> None:
        """Let it finish its requests for at most `drain_s`, then kill what is left of it and its children."""
        if self.exit_code() is None:
            self._popen.terminate()
            try:
                self._popen.wait(drain_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._popen.wait()
        if not self._group_ends():
            self.kill()

    def kill(self) -> None:
        """Kill it and its children at once; clients that wait for an answer get an error."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._group_ends()

    def _group_ends(self) -> bool:
        """Wait until no process of the group is left; False if that takes too long."""
        deadline = time.monotonic() + GROUP_SECONDS
        while _lives(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def _lives(group: int) -> bool:
    # As the first process of a container we inherit the children of a dead one and have to reap them.
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
