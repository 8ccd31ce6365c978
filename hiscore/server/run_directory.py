"""The directory in which the models of one running server find each other's claims, weights and loads."""

import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "HISCORE_RUN_DIRECTORY"
"""Names a directory in the environment of the server, which whoever started it removes."""
PREFIX = "hiscore-server-"


def run_directory(server: int) -> Path:
    """Return the directory of a server, by its process id; its first model makes it.

    One of a server that is gone is removed by the first model of the next one.

    Raises:
        PermissionError: Somebody else has made it.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    parent = Path(tempfile.gettempdir())
    directory = parent / f"{PREFIX}{server}-{started(server)}"
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if directory.lstat().st_uid != os.geteuid() or directory.is_symlink():
            raise PermissionError(
                f"{directory} belongs to somebody else: remove it, or set {VARIABLE}"
            ) from None
    else:
        _sweep(parent)
    return directory


def started(process: int) -> int:
    """Read when a process started, in clock ticks since the machine did; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    # The name of the command before it may hold spaces and parentheses.
    return int(stat.rpartition(")")[2].split()[19])


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*-*"):
        process, _, ticks = path.name.removeprefix(PREFIX).partition("-")
        if process.isdecimal() and ticks.isdecimal() and started(int(process)) != int(ticks):
            shutil.rmtree(path, ignore_errors=True)
