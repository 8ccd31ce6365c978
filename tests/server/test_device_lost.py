"""What CUDA's errors do to the process of a model; on a GPU a real one does it, in `tests/gpu`."""

from pathlib import Path

import pytest
import torch

from hiscore.serving.device_loss import is_device_lost
from tests.server.device_lost import check_that_the_process_ends_and_is_seen


@pytest.mark.server
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
