"""What a server leaves on this machine; everything of one server carries its name."""

import re
import tempfile
from pathlib import Path

import psutil

from hiscore.launcher.workspace import shared_memory
from tests.support.timeouts import wait_until


def processes(name: str) -> list[int]:
    """Ids of the processes whose command line holds the server's name."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if name in " ".join(process.info["cmdline"] or ()):
            found.append(process.info["pid"])
    return found


def leftovers(name: str) -> list[str]:
    """Processes, shared memory and files of the server with this name."""
    assert name, "every machine has processes without a name"
    directory = Path(tempfile.gettempdir()) / name
    return [
        *(f"process {pid}" for pid in processes(name)),
        *map(str, shared_memory(name)),
        *([str(directory)] if directory.exists() else []),
    ]


def wait_gone(name: str) -> None:
    wait_until(lambda: not processes(name), lambda: f"{leftovers(name)} is left")


def server_below(pid: int) -> tuple[str, int]:
    """Name and process id of the tritonserver that a launcher or its make has started."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        found = re.search(r"--id=(\S+)", command)
        if found and "tritonserver" in child.name():
            return found.group(1), child.pid
    raise AssertionError(f"process {pid} has no tritonserver below it")
