"""What CUDA's errors do to the process of a model; on a GPU a real one does it, in `tests/gpu`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hiscore.device.loss import is_device_lost
from tests.server.device_lost import check_that_the_process_ends_and_is_seen

# Like PyTorch, which aborts where it frees pinned memory that a lost device has read.
FAILING = """
import os, sys, time
from hiscore.device.loss import end_if_device_is_lost

class Pinned:
    def __del__(self):
        os.abort()

def launch():
    pinned = Pinned()
    raise RuntimeError(sys.argv[1])

try:
    launch()
except RuntimeError as error:
    end_if_device_is_lost(error)
time.sleep(60)
"""


@pytest.mark.server
@pytest.mark.exhaustive
def test_an_error_of_the_device_ends_the_process(tiny_lm: Path, tmp_path: Path) -> None:
    fault = "raise RuntimeError('Triton Error [CUDA]: an illegal memory access was encountered')"
    check_that_the_process_ends_and_is_seen(fault, "cpu", tiny_lm, tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
    ids=["torch", "kernel"],
)
def test_errors_of_torch_and_of_kernels_mean_that_the_device_is_lost(error: Exception) -> None:
    assert is_device_lost(error)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        ("Triton Error [CUDA]: an illegal memory access was encountered", 1),
        ("shapes do not match", -signal.SIGABRT),  # the control: what it held is freed
    ],
    ids=["lost", "another error"],
)
def test_what_failed_is_not_freed_before_the_process_ends(error: str, exit_code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", FAILING, error], check=False, stderr=subprocess.DEVNULL)
    assert ended.returncode == exit_code


def test_other_errors_end_no_process() -> None:
    assert not is_device_lost(RuntimeError("shapes do not match"))
    assert not is_device_lost(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_device_lost(None)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=["torch", "kernel"],
)
def test_a_device_without_memory_left_is_not_lost(error: Exception) -> None:
    """As where a kernel is loaded for the first time: the call fails, the next one may not."""
    assert not is_device_lost(error)
