"""Read what a forward has left for the host: tokens, log-probabilities and counters."""

import numpy as np
import torch
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
        self._counted = np.zeros(4)  # the cache's counters, as last read
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
        counters, tokens = readback[:COUNTERS], readback[COUNTERS : COUNTERS + rows]
        now = np.concatenate((counters[:2].numpy().astype(np.float64), counters[2:].view(torch.float64)))
        (hits, misses, mass, mass_rows), self._counted = now - self._counted, now
        offloaded = self._schedule.offloaded_tokens - self._offloaded_tokens
        self._offloaded_tokens += offloaded
        return ForwardResult(
            tokens=tokens.numpy().astype(np.int32), hits=int(hits), misses=int(misses), seconds=seconds,
            offloaded_tokens=offloaded, offload_lag=int(self._schedule.lag().sum()),
            captured_mass=float(mass), captured_rows=int(mass_rows),
            logprobs=unpack(readback[COUNTERS + rows :].numpy(), sampling),
        )  # fmt: skip
