"""Read what a forward has left for the host: tokens, log-probabilities and counters."""

import numpy as np
from torch import Tensor

from hiscore.decoding.interface.logprobs import unpack
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import ForwardResult
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import COUNTERS


class ResultReader:
    """Counts from one result to the next. schedule: knows how far the copies to the host have come."""

    def __init__(self, schedule: OffloadSchedule) -> None:
        self._schedule = schedule
        self._counted: list[float] = [0] * COUNTERS  # the cache's counters, as last read
        self._offloaded_tokens = 0

    def read(
        self,
        readback: Tensor,
        rows: int,
        seconds: float,
        sampling: SamplingBatch | None = None,
    ) -> ForwardResult:
        """Make a result of `StepOutputs.readback` on the host.

        Args:
            readback: int64 [COUNTERS + rows] or more.
            rows: Tokens to read.
            seconds: Time that the forward took on the device.
            sampling: Of the rows; None: none reports log-probabilities.
        """
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
