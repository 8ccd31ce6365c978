"""Copies between host and device that wait for neither."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Start a copy to a device, on its current stream.

    Args:
        values: On the host.
        device: On the CPU the result may share memory with `values`.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def download(values: Tensor) -> Tensor:
    """Start a copy to the host, complete when the device's current stream has reached it.

    Args:
        values: Tensors of the CPU are returned as they are.
    """
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)
