"""Says when /dev/shm runs full: Triton fails calls then, and logs nothing."""

import logging
import time
from collections.abc import Callable

from hiscore.launcher.preflight import free_shared_memory

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
SHM_BYTES = 64 * 2**20
"""Shared memory of a model's instance at the start, and the step in which it grows.

It holds the tensors of several of the largest calls (4,000,000 ids are 16 MB), and three models fit a /dev/shm of
1 GiB with room to grow.
"""


class SharedMemoryWatch:
    """Logs once when the room in /dev/shm falls below a step of growth, and again after it has recovered.

    Args:
        step: Bytes by which a model's region grows.
        free: Bytes that are left.
        clock: In seconds.
    """

    def __init__(
        self,
        step: int = SHM_BYTES,
        free: Callable[[], int] = free_shared_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step, self._free, self._clock = step, free, clock
        self._low = False
        self._next = 0.0

    def check(self) -> None:
        """Look at it, every few seconds at most."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + CHECK_EVERY_S
        free = self._free()
        low = free < self._step
        if low and not self._low:
            log.error(
                "/dev/shm has %d MiB left: calls for which a model's region would have to grow fail. Make it "
                "larger (docker run --shm-size=2g)",
                free >> 20,
            )
        self._low = low
