"""Choose the models' device without importing torch, which takes seconds and a GPU context."""

import os
from importlib import metadata
from pathlib import Path
from typing import Literal

from hiscore.settings import Device


def choose_device(device: Device) -> tuple[Literal["cpu", "cuda"], str]:
    """The device and the reason for it; "auto" is a GPU if there is one that torch can use."""
    if device != "auto":
        return device, "DEVICE is set"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return "cpu", "CUDA_VISIBLE_DEVICES hides every GPU"
    if metadata.version("torch").endswith("+cpu"):
        return "cpu", "the installed torch is the CPU build"
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "cpu", "this machine has no NVIDIA GPU"
    return "cuda", "this machine has a GPU"
