"""What a server and its models' processes hold of the machine."""

from dataclasses import dataclass

import psutil

from hiscore.launcher.workspace import shared_memory


@dataclass(frozen=True)
class Footprint:
    """Of all processes together: MiB of their own (not shared), MiB in /dev/shm, open files, threads."""

    memory: float
    shared: float
    files: int
    threads: int


def footprint(pid: int, name: str) -> Footprint:
    """pid, name: of the tritonserver, whose children the models' processes are."""
    server = psutil.Process(pid)
    processes = [server, *server.children(recursive=True)]
    memory = [process.memory_info() for process in processes]
    return Footprint(
        memory=sum(info.rss - info.shared for info in memory) / 2**20,
        shared=sum(region.stat().st_size for region in shared_memory(name)) / 2**20,
        files=sum(process.num_fds() for process in processes),
        threads=sum(process.num_threads() for process in processes),
    )
