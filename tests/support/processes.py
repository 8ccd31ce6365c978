"""Processes that tests start or look for."""

import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil


def start_heeding_sigint(command: list[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that heeds SIGINT: whoever runs the tests in the background has it ignored, and with it we.

    Not by a ``preexec_fn``: after the fork gRPC starts threads in the child, which may end it.
    """
    # What is handled here, and no longer ignored, is the default there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended, whoever their parent is by now: one that nobody reaps has, too."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found += [process] * (process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return found
