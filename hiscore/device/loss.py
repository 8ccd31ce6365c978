"""Ends a model's process when its CUDA device is lost."""

import logging
import os
import threading

import torch

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""Time for the error responses to be sent."""
_ending = threading.Lock()
_held: list[Exception] = []
"""Errors of the lost device. Their frames hold pinned tensors, and PyTorch aborts if it fails to free one."""


def is_device_lost(error: Exception | None) -> bool:
    """Tell whether an error leaves the CUDA context of this process unusable."""
    # Triton kernels do not have their own exception class for it.
    of_device = isinstance(error, torch.AcceleratorError) or str(error).startswith("Triton Error [CUDA]")
    # Memory may be free again for the next call.
    return of_device and "out of memory" not in str(error)


def end_if_device_is_lost(error: Exception) -> None:
    """End the process if every later call would fail too; the watchdog then starts a new server.

    Call this where the error is caught: its frames are kept until the end.
    """
    if not is_device_lost(error):
        return
    _held.append(error)
    if _ending.acquire(blocking=False):
        log.critical("the device is lost: this process ends")
        end = threading.Timer(GRACE_S, os._exit, (1,))
        end.daemon = True
        end.start()
