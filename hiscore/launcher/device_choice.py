"""Which device the scorer runs on, found without importing torch (seconds, and a GPU context)."""

import os
from importlib import metadata
from pathlib import Path
from typing import Literal

from hiscore.settings import Device


def choose_device(device: Device) -> tuple[Literal["cpu", "cuda"], str]:
    """Resolve "auto", with the reason in words."""
    if device != "auto":
        return device, "as DEVICE says"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return "cpu", "CUDA_VISIBLE_DEVICES hides every GPU"
    if metadata.version("torch").endswith("+cpu"):
        return "cpu", "the installed torch is the CPU build"
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "cpu", "this machine has no NVIDIA GPU"
    return "cuda", "a GPU is there"
