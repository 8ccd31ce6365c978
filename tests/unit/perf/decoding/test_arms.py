"""What arms are built with: loads are sent again and again, and must be computed each time."""

import json
from pathlib import Path

import pytest
import torch

from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import Arm, build_worker, shared_weights
from perf.decoding.worker_driver import Driver
from perf.models import random_checkpoint

MEMORY = MemoryBudget(2**24, 2**24, 2)
SIZES = {"selector": "auto", "sparse_top_k": 64, "device_buffer_size": 128}


@pytest.mark.parametrize("given", [{}, {"prefix_cache": True}], ids=str)
def test_nothing_is_found_again_unless_an_arm_says_so(tmp_path: Path, given: dict[str, bool]) -> None:
    with shared_weights():
        checkpoint = random_checkpoint.write_config("tiny", tmp_path, 256)
        worker = build_worker(checkpoint, Arm("one", SIZES | given), MEMORY)
    assert worker.cache_config.prefix_cache == bool(given)
    context = json.loads((checkpoint / "config.json").read_text())["max_position_embeddings"]
    assert worker.cache_config.context_length == context == 256


@pytest.mark.slow
def test_blocking_launches_a_copy_before_the_next_step_and_changes_no_number(tmp_path: Path) -> None:
    dense, logits, launched = {"selector": "dense", "backup_ring": 1}, [], []
    with shared_weights():
        checkpoint = random_checkpoint.write_config("tiny", tmp_path, 256)
        for blocking in (False, True):
            worker = build_worker(checkpoint, Arm("one", dense, blocking=blocking), MEMORY)
            driver = Driver.of_random(worker, checkpoint, [32])
            driver.steps(5)
            logits.append(driver.logits)
            launched.append(worker._schedule.oldest_copy is not None)
            driver.release()
            assert worker._schedule.offloaded_tokens == 32 + 5
    assert torch.equal(*logits)
    assert launched == [True, False]
