"""The device and the numbers that the scorer computes with."""

import logging

import torch

from hiscore.device.copies import cpu_has_bfloat16, fix_product_sums
from hiscore.layers.fp8 import FP8_CAPABILITY

log = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def use_device(device: str) -> torch.device:
    """Find the device of this name, "auto" being a GPU if there is one; a GPU becomes the current one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda":
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        torch.cuda.set_device(index)
        chosen = torch.device("cuda", index)
        fix_product_sums()
    return chosen


def pick_dtype(dtype: str, device: torch.device, stored_in_fp8: bool = False) -> str:
    """Decide the format of the numbers, or raise ValueError if the device does not compute in it."""
    if dtype == "auto" and stored_in_fp8 and device.type == "cuda":
        has_fp8 = torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
        return "fp8" if has_fp8 else "bfloat16"
    if dtype == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if dtype == "fp8":
        _check_fp8(device)
    return dtype


def warn_if_slow(precision: str, device: torch.device) -> None:
    """Say, once at a start, that a processor has to widen every bfloat16. "auto" is float32 on a CPU."""
    if precision == "bfloat16" and device.type == "cpu" and not cpu_has_bfloat16():
        log.warning(
            "DTYPE is bfloat16, which this processor does not have: it takes half the memory of float32, but "
            "more time and a part of the precision. Leave DTYPE at auto, or set it to float32, if there is room"
        )


def dtype_of(precision: str) -> torch.dtype:
    """The dtype of everything but projections in fp8: activations, keys and values, embedding and head."""
    return torch.bfloat16 if precision == "fp8" else DTYPES[precision]


def _check_fp8(device: torch.device) -> None:
    """Refuse a GPU without fp8, and the CPU, which would compute it more slowly than bfloat16."""
    needed = "DTYPE=fp8 needs a CUDA device of compute capability {}.{} or later".format(*FP8_CAPABILITY)
    if device.type != "cuda":
        raise ValueError(f"{needed}, and the scorer runs on the CPU: set DTYPE to bfloat16 or float32")
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        raise ValueError(f"{needed}, and {device} has {capability[0]}.{capability[1]}: set DTYPE to bfloat16")
