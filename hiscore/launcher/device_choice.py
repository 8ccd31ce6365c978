"""Choose the models' device without importing torch, which takes seconds and a GPU context."""

import os
from importlib import metadata
from pathlib import Path
from typing import Literal

from hiscore.settings import Device


def choose_device(device: Device) -> tuple[Literal["cpu", "cuda"], str]:
    """Choose the device, and say why; "auto" is a GPU if there is one that torch can use."""
    if device != "auto":
        return device, "DEVICE is set"
    reason = no_gpu()
    return ("cpu", reason) if reason else ("cuda", "this machine has a GPU")


def no_gpu() -> str:
    """Say why torch cannot use a GPU here; empty if it probably can."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if metadata.version("torch").endswith("+cpu"):
        return "the installed torch is the CPU build"
    if not has_gpus():
        return "this machine has no NVIDIA GPU"
    return ""


def has_gpus() -> bool:
    """Tell whether the machine has NVIDIA GPUs, visible to torch or not."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def visible_gpus() -> int:
    """Count the GPUs that torch will see, if it can use any."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return len(named.split(","))
    return len([*Path("/dev").glob("nvidia[0-9]*")])
