"""Memory, files and threads of a server and its models' processes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median

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


# Allocators take and give back in pieces, and calls in flight use files and threads: more than this is growth.
MEMORY_SHARE, MEMORY_MIB = 0.03, 8.0
UNDER_WAY = 16


def grown(samples: Sequence[Footprint]) -> list[str]:
    """What was more in the last third than in the one before, a line for each; the first third is warming up."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    found = []
    for name in (field.name for field in fields(Footprint)):
        before, after = ([float(getattr(sample, name)) for sample in part] for part in (middle, last))
        if name == "memory":
            was, now = median(before), median(after)
            allowed = max(MEMORY_SHARE * was, MEMORY_MIB)
        else:
            was, now = min(before), min(after)
            allowed = 0.0 if name == "shared" else UNDER_WAY
        if now - was > allowed:
            found.append(f"{name} grew from {was:.1f} to {now:.1f}")
    return found
