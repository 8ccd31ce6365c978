"""Notice a SIGINT that was sent to `make` alone.

On a SIGTERM, make signals its children and waits for them. On a SIGINT it only waits, because a Ctrl-C reaches the
whole process group anyway; if the SIGINT was sent to make alone, it would wait forever. What a child can see is
that make restores the signal's default action when it gets one.
"""

import os
import re
import signal
from pathlib import Path

MAKES = ("make", "gmake")


class MakeInterrupt:
    """Tells whether our parent is a make that got a SIGINT. Never for other parents or systems."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._is_make = self._name() in MAKES and self._catches_interrupt()

    def interrupted(self) -> bool:
        """Tell whether make got a SIGINT or is gone."""
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
