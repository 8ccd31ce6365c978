"""Runs decode steps: the interface, and one that launches each step's work piece by piece."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.cache import DecodeRows
from hiscore.decoding.model import DecodeModel
from hiscore.decoding.steps import Steps
from hiscore.decoding.uploads import upload
from hiscore.decoding.worker_api import Int32


class StepRunner(Protocol):
    """Launches steps on the current stream."""

    steps: Steps
    """For the copies beside the steps."""
    fed: Tensor
    """int32 [streams]: the token that each slot feeds next."""

    def run(self, slots: Int32, positions: Int32, full: bool) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the streams in int32 [R] slots, whose new tokens stand at int32 [R] positions.

        full: a stream that attends to everything is among them.
        Returns logits float32 [R, vocabulary], which hold until the next step is launched, and where tokens were
        written, int32 [R] each: see `DecodeModel.step`.
        """
        ...


class EagerRunner:
    """`StepRunner` without anything prepared: for the CPU, where nothing is gained by it."""

    def __init__(self, model: DecodeModel, steps: Steps, streams: int) -> None:
        self.steps = steps
        self.fed = torch.zeros(streams, dtype=torch.int32, device=model.staging.device)
        self._model = model

    def run(self, slots: Int32, positions: Int32, full: bool) -> tuple[Tensor, Tensor, Tensor]:
        both = upload(np.stack((slots, positions)), self.fed.device)
        rows = DecodeRows(both[0], both[1])
        return self._model.step(torch.index_select(self.fed, 0, rows.streams), rows, self.steps)
