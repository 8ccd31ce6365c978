"""Keep cores awake while a server has work, and for some time after it. See `hiscore.launcher.spinner`.

usage: python -I -S spin.py SECONDS BOARD...

A process for each core spins in the scheduling class below all others: a thread that has work takes the core from
it at once. A board holds float64 numbers: what there is to do for each instance of a model (`serving.load_board`).
"""

import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence

LOOK_S = 0.001
"""How often a process that sleeps looks for work."""


def keep_awake(
    busy: Callable[[], bool],
    spin_s: float,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Spin while there is work and until `spin_s` after it was last seen, and sleep otherwise.

    Args:
        busy: Whether there is work.
        spin_s: In seconds.
        ended: Return when this is true.
        clock: In seconds.
        sleep: Sleeps for so many.
    """
    until = -math.inf
    while not ended():
        now = clock()
        if busy():
            until = now + spin_s
        elif now >= until:
            sleep(LOOK_S)


def has_work(boards: "Sequence[memoryview[float]]") -> bool:
    """Whether an instance has something to do; one that is full, infinitely much. Free places are negative."""
    return any(load > 0.0 for board in boards for load in board)


def _map(path: str) -> "memoryview[float]":
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("d")


def _divide(cores: Sequence[int]) -> tuple[int, int]:
    """Become a process for each core. Returns its core and its parent."""
    first, parent = os.getpid(), os.getppid()
    for core in cores[1:]:
        if not os.fork():
            return core, first
    return cores[0], parent


def main() -> None:
    spin_s, boards = float(sys.argv[1]), [_map(path) for path in sys.argv[2:]]
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    core, parent = _divide(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {core})
    keep_awake(lambda: has_work(boards), spin_s, lambda: os.getppid() != parent)


if __name__ == "__main__":
    main()
