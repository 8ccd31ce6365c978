"""A SIGINT that reaches `make` alone.

On a SIGTERM make tells its children and waits for them. On a SIGINT it only waits, since a Ctrl-C reaches the
whole process group anyhow; one that was sent to make alone would wait forever. What can be seen from here is
that make no longer catches the signal: it restores the default action when it gets one.
"""

import os
import re
import signal
from pathlib import Path

MAKES = ("make", "gmake")


class MakeInterrupt:
    """Tells when our parent is a make that has got a SIGINT; other parents, and other systems, never."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._is_make = self._name() in MAKES and self._catches_interrupt()

    def interrupted(self) -> bool:
        """Whether make has got its SIGINT, or has gone."""
        return self._is_make and (os.getppid() != self._parent or not self._catches_interrupt())

    def _name(self) -> str:
        return self._read("comm").strip()

    def _catches_interrupt(self) -> bool:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", self._read("status"), re.MULTILINE)
        return bool(caught and int(caught.group(1), 16) >> (signal.SIGINT - 1) & 1)

    def _read(self, name: str) -> str:
        try:
            return Path(f"/proc/{self._parent}/{name}").read_text()
        except OSError:
            return ""
