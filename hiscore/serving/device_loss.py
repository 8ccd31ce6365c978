"""What becomes of a model's process when its CUDA device is lost."""

import logging
import os
import threading

import torch

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""For the answers that say so to leave."""
_ending = threading.Lock()


def is_device_lost(error: Exception | None) -> bool:
    """Whether an error leaves the CUDA context of this process unusable."""
    # Kernels of ours are launched by the Triton language, which has no class for it.
    return isinstance(error, torch.AcceleratorError) or str(error).startswith("Triton Error [CUDA]")


def end_if_device_is_lost(error: Exception) -> None:
    """Every later call on a lost device would fail as well: whoever watches the server starts a new one.

    To be called where the loss is first seen. Torch may end the process sooner, when it gives memory back.
    """
    if is_device_lost(error) and _ending.acquire(blocking=False):
        log.critical("the device is lost: this process ends")
        end = threading.Timer(GRACE_S, os._exit, (1,))
        end.daemon = True
        end.start()
