"""A private directory per server, and the shared memory named after it.

The directory holds a lock file that the launcher, the server and the server's children keep open. The lock is free
exactly when all of them are gone, however they ended, so leftovers of a dead server can be told from a live one's.
"""

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from hiscore.launcher.errors import LaunchError

PREFIX = "hiscore-"
SHARED_MEMORY = Path("/dev/shm")


class Workspace:
    """A new private directory (mode 0700). Its name is also the prefix of the server's shared memory."""

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = os.open(self.path / "lock.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        # Renamed only when it is locked: a directory whose lock is free may be swept at any time.
        (self.path / "lock.new").rename(self.path / "lock")
        if not re.fullmatch(r"[\w./-]+", str(self.path)):
            self.remove()
            raise LaunchError(
                f"the temporary directory {self.path.parent} has characters that Triton's Python backend cannot "
                "take in a path: set TMPDIR to one of letters, digits, '.', '_' and '-'"
            )

    @property
    def name(self) -> str:
        return self.path.name

    def remove_shared_memory(self) -> None:
        """Remove the shared memory of a server that is gone, but keep the directory."""
        _remove_shared_memory(self.name)

    def remove(self) -> None:
        """Remove the directory and the shared memory."""
        _remove(self.path)
        os.close(self.lock)


def shared_memory(name: str) -> list[Path]:
    return sorted(SHARED_MEMORY.glob(f"{name}*"))


def sweep() -> None:
    """Remove what killed servers of this user left behind."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid != os.geteuid():
                continue
            lock = os.open(path / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _remove_shared_memory(name: str) -> None:
    for region in shared_memory(name):
        region.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    _remove_shared_memory(path.name)
    shutil.rmtree(path, ignore_errors=True)
