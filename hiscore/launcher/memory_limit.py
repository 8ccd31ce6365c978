"""Bounds what calls may take in tritonserver itself, which unpacks compressed ones without any limit.

A megabyte of gzip holds a gigabyte of zeros, and Triton 2.51 can neither refuse compression nor stop unpacking. So
once it is ready, the kernel lets it have a fixed amount more (RLIMIT_DATA). Over HTTP, what does not fit gets an
error; where Triton does not check its allocations it aborts, and the watchdog restarts it.

The limit is set from outside, on this process alone: its models were started before and have none. It counts
private writable memory. Memory that is only reserved, which CUDA does a lot, does not count, and threads, whose
stacks do, have all been started by then.
"""

import logging
import re
import resource
from pathlib import Path

log = logging.getLogger(__name__)

MOST = 4 * 2**30
LEAST = 2**28
SHARE = 4


def default_allowance(available: int) -> int:
    """A quarter of the memory that is left once all models are loaded, within bounds; in bytes."""
    return min(MOST, max(LEAST, available // SHARE))


def limit_memory(pid: int, allowance: int) -> None:
    """Let a running process take so much more.

    Args:
        pid: Id of a process of this user.
        allowance: In bytes.
    """
    try:
        limit = data_bytes(pid) + allowance
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, hard))
    except OSError as error:
        log.warning("no limit on what calls may take in tritonserver: %s", error)
        return
    log.info("calls may take %d MiB in tritonserver itself", allowance >> 20)


def data_bytes(pid: int) -> int:
    """What a process has of the memory that RLIMIT_DATA counts."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0
