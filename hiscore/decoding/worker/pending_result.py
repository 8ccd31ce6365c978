"""The result of a launched forward, before the host has it."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from hiscore.decoding.interface.worker import ForwardResult
from hiscore.device import download


class PendingResult:
    """`PendingForward`; on a CUDA device its result waits for one event, behind the copy of the readback."""

    def __init__(
        self, read: Callable[[Tensor, int, float], ForwardResult], rows: int, device: torch.device
    ) -> None:
        """Start the clock, on the queue in use.

        Args:
            read: Makes the result of the readback on the host, `rows`, and the seconds that the forward took.
            rows: Tokens in the readback.
            device: Where the forward runs.
        """
        self._read, self._rows = read, rows
        self.failures: dict[int, Exception] = {}
        self._started = time.perf_counter()
        self._begin = _timed_event() if device.type == "cuda" else None

    def copy_to_host(self, readback: Tensor) -> None:
        """Launch the copy of `StepOutputs.readback` to the host, and stop the clock behind it."""
        if self._begin is None:
            self._readback, self._seconds = readback, time.perf_counter() - self._started
            return
        self._readback = download(readback)
        self._copy_done = _timed_event()

    def result(self) -> ForwardResult:
        if self._begin is not None:
            self._copy_done.synchronize()
            self._seconds = self._begin.elapsed_time(self._copy_done) / 1e3
        return self._read(self._readback, self._rows, self._seconds)


def _timed_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
