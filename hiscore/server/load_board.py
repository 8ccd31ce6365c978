"""The loads of a model's instances, by which calls are dealt among them.

Triton keeps one queue per model, and hands the next call to any instance whose `execute` has returned. Ours only
queues a call, so calls would be dealt in turn, whatever an instance still has to do. Hence each publishes its
load, and returns from `execute` only when no other has less to do. An instance that has returned cannot be called
back: if another has less to do a moment later, it still gets a call.
"""

import fcntl
import math
import mmap
import os
import time
from array import array
from pathlib import Path

MAX_INSTANCES = 64
FREE = -1.0
"""The load of a place that no instance has."""
POLL_S = 0.002
"""The delay with which an instance notices its turn. Meanwhile another takes the calls."""


class LoadBoard:
    """One instance's view of all loads, in the server's directory; without one it is the only instance.

    Raises:
        ValueError: There are too many instances.
    """

    def __init__(self, directory: Path | None = None, model: str = "", server: int | None = None) -> None:
        self._loads: array[float] | memoryview[float] = array("d", [0.0])
        self._own = 0
        if directory is not None:
            # A restarted server begins with an empty board: its instances are children of another process.
            self._join(directory / f"loads-{model}-{server or os.getppid()}")

    def publish(self, load: float) -> None:
        """Publish what the instance has to do, at least 0; infinite: no call could wait."""
        self._loads[self._own] = load

    def others_have_room(self) -> bool:
        """Tell whether a call that finds no room here would find some elsewhere."""
        return self._least_of_others() < math.inf

    @property
    def is_next(self) -> bool:
        """No other instance has less to do than this one."""
        return self._loads[self._own] <= self._least_of_others()

    def wait_for_turn(self) -> None:
        """Return when this instance is next. Others take the calls until then."""
        while not self.is_next:
            time.sleep(POLL_S)

    def _least_of_others(self) -> float:
        others = (load for place, load in enumerate(self._loads) if place != self._own and load != FREE)
        return min(others, default=math.inf)

    def _join(self, path: Path) -> None:
        """Map the board, and take the first free place."""
        with open(path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_size:
                file.write(array("d", [FREE] * MAX_INSTANCES).tobytes())
                file.flush()
            self._loads = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
            if FREE not in self._loads:
                raise ValueError(f"a model has at most {MAX_INSTANCES} instances")
            self._own = list(self._loads).index(FREE)
            self.publish(0.0)
            # The map has a descriptor of its own, which would keep the lock.
            fcntl.flock(file, fcntl.LOCK_UN)
