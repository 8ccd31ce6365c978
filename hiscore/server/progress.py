"""A counter that moves while a model computes, in a file that the launcher reads.

A forward on a CPU may take minutes, during which the model answers nothing and no metric changes. To a watchdog
that looks like a hang; but here each layer counts.
"""

import mmap
import os
from collections.abc import Callable
from pathlib import Path

COUNTER_BYTES = 8
Advance = Callable[[], None]


def no_progress() -> None:
    """Count nothing: no launcher watches."""


class Progress:
    """A model's counter, in its server's directory."""

    def __init__(self, directory: Path, model: str) -> None:
        path = _files(directory, model) / str(os.getpid())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(COUNTER_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), COUNTER_BYTES)
        self._count = 0

    def advance(self) -> None:
        """Count a piece of work: a store to memory, cheap enough for every layer."""
        self._count += 1
        self._memory[:] = self._count.to_bytes(COUNTER_BYTES, "little")


def read_progress(directory: Path, model: str) -> int:
    """Add up the counters of a model's processes, dead ones included: the sum moves if and only if one works."""
    return sum(int.from_bytes(file.read_bytes(), "little") for file in _files(directory, model).glob("*"))


def _files(directory: Path, model: str) -> Path:
    return directory / "progress" / model
