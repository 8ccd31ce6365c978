"""Keep cores awake while a server has work, and for some time after it. See `hiscore.launcher.spinner`.

usage: python -I -S spin.py SECONDS BOARD...

Each core has a process in the scheduling class below all others: a thread that has work takes the core from it at
once. It waits for a spin lock that the first process holds while there is work. Waiting for it is made of
instructions that let the processor pause, so that another hyperthread of the core is hardly slowed down, as it
would be by a loop in Python. The first process is of the usual class, or it would not be in time to see work. A
board holds float64 numbers: what there is to do for each instance of a model (`serving.load_board`).
"""

import ctypes
import math
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import byref

LOOK_S = 0.001
"""How often the first process looks for work."""
PR_SET_PDEATHSIG, PTHREAD_PROCESS_SHARED = 1, 1
libc = ctypes.CDLL(None)


class Core:
    """What keeps one core awake, shared by the first process and the core's own."""

    def __init__(self) -> None:
        self._woken = os.eventfd(0)
        # A pthread_spinlock_t, in a page that processes share.
        self._lock = ctypes.c_int.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_int)))
        libc.pthread_spin_init(byref(self._lock), PTHREAD_PROCESS_SHARED)
        self._held = False

    def keep_awake(self) -> None:
        """Let the core's process spin."""
        # Its process may have the lock for a moment, and is then asked at the next look.
        if not self._held and libc.pthread_spin_trylock(byref(self._lock)) == 0:
            self._held = True
            os.eventfd_write(self._woken, 1)

    def let_sleep(self) -> None:
        """Let it sleep."""
        if self._held:
            self._held = False
            libc.pthread_spin_unlock(byref(self._lock))

    def run(self) -> None:
        """The core's process: sleep and spin, for ever."""
        while True:
            os.eventfd_read(self._woken)
            libc.pthread_spin_lock(byref(self._lock))
            libc.pthread_spin_unlock(byref(self._lock))


def watch(
    busy: Callable[[], bool],
    cores: Sequence[Core],
    spin_s: float,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep cores awake while there is work and until `spin_s` after it was last seen.

    Args:
        busy: Whether there is work.
        cores: Which.
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
        for core in cores:
            if now < until:
                core.keep_awake()
            else:
                core.let_sleep()
        sleep(LOOK_S)


def has_work(boards: "Sequence[memoryview[float]]") -> bool:
    """Whether an instance has something to do; one that is full, infinitely much. Free places are negative."""
    return any(load > 0.0 for board in boards for load in board)


def _map(path: str) -> "memoryview[float]":
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("d")


def _start(number: int) -> Core:
    """Start the process of a core, which ends with this one."""
    core, first = Core(), os.getpid()
    if os.fork():
        return core
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        os._exit(1)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {number})
    if os.getppid() == first:
        core.run()
    os._exit(0)


def main() -> None:
    spin_s, boards = float(sys.argv[1]), [_map(path) for path in sys.argv[2:]]
    parent = os.getppid()
    cores = [_start(number) for number in sorted(os.sched_getaffinity(0))]
    watch(lambda: has_work(boards), cores, spin_s, lambda: os.getppid() != parent)


if __name__ == "__main__":
    main()
