"""Starts processes beside this one that end when it does."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hiscore.server import die_with_parent

# Not a session of its own: Linux shares processors between sessions (autogroup), and what keeps cores awake in the
# class SCHED_IDLE (docs/operations.md) is below the server only in the server's session.
APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def start_child(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own, so that a Ctrl-C reaches it only through us.

    It gets a SIGTERM when the thread that calls this ends, has large stacks, and may write to our terminal.

    Args:
        environment: All of its variables; None: ours.
        log_path: File to append its output to; None: our standard error.
        pass_fds: File descriptors that it and its children keep open.
    """
    wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    with open(log_path, "ab") if log_path else nullcontext(sys.stderr) as log:
        return subprocess.Popen(
            [*wrapper, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=pass_fds,
            **APART,
        )
