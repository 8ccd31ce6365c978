"""Results of launched forwards: tokens, log-probabilities and counters, once the host has them."""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.logprobs import unpack
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import ForwardResult
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import COUNTERS
from hiscore.device.copies import download


class ResultReader:
    """Counts from one result to the next; `schedule` knows how far the copies to the host have come."""

    def __init__(self, schedule: OffloadSchedule) -> None:
        self._schedule = schedule
        self._counted: list[float] = [0] * COUNTERS  # the cache's counters, as last read
        self._offloaded_tokens = 0

    def read(
        self, readback: Tensor, rows: int, seconds: float, sampling: SamplingBatch | None = None
    ) -> ForwardResult:
        """Make a result of `StepOutputs.readback` on the host, int64 [COUNTERS + rows] or more."""
        values = readback.numpy()
        tokens = values[COUNTERS : COUNTERS + rows].astype(np.int32)
        now = [*values[:2].tolist(), *values[2:COUNTERS].view(np.float64).tolist()]
        hits, misses, mass, mass_rows = (
            value - before for value, before in zip(now, self._counted, strict=True)
        )
        self._counted = now
        offloaded = self._schedule.offloaded_tokens - self._offloaded_tokens
        self._offloaded_tokens += offloaded
        return ForwardResult(
            tokens=tokens, hits=int(hits), misses=int(misses), seconds=seconds,
            offloaded_tokens=offloaded, offload_lag=int(self._schedule.lag().sum()),
            captured_mass=mass, captured_rows=int(mass_rows), logprobs=unpack(values[COUNTERS + rows :], sampling),
        )  # fmt: skip


class PendingResult:
    """`PendingForward`; on a CUDA device its result waits for one event, behind the copy of the readback."""

    def __init__(
        self, read: Callable[[Tensor, int, float], ForwardResult], rows: int, device: torch.device
    ) -> None:
        """Start the clock, on the queue in use; `read` gets the readback, `rows` and the forward's seconds."""
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
