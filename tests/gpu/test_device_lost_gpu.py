"""A CUDA error behind the real server: the process of the model says so and ends, and the launcher sees it."""

from pathlib import Path

import pytest
import torch

from tests.server.device_lost import check_that_the_process_ends_and_is_seen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

# Reads beyond a tensor on the device, which no later call of the process survives.
FAULT = "torch.zeros(1, device=self.device)[torch.tensor([9], device=self.device)]"


def test_a_lost_device_ends_the_process_and_is_seen(checkpoints, tmp_path: Path) -> None:
    check_that_the_process_ends_and_is_seen(FAULT, "cuda", checkpoints("qwen3")[0], tmp_path)
