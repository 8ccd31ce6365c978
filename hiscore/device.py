"""From the host's memory to a device's, without waiting for either."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """The values on a device; where that is a CUDA device, once what its current stream holds has run.

    On the CPU they may share memory with what was given.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
