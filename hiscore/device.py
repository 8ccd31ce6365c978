"""A device's memory, and copies between it and the host that wait for neither."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from hiscore.memory.host import available_host_bytes


def memory_of(device: torch.device) -> str:
    """The memory that a device's tensors are in: its own, or the host's."""
    return str(device) if device.type == "cuda" else "host"


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that nobody has taken."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_host_bytes()


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


def fix_product_sums() -> None:
    """Let cuBLAS choose only kernels that add up the terms of a product in one order, for the whole process.

    Where a product has few rows it would split long sums otherwise, and the bits of a row would depend on the
    number of rows. On Hopper the rest add up alike, at every size that was compared
    (perf/results/h200/row_invariance.json).
    """
    torch.backends.cuda.preferred_blas_library("cublaslt")
    # Neither reduced precision nor split sums.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)
