"""What arms are built with: loads are sent again and again, and must be computed each time."""

import json
from pathlib import Path

import pytest

from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import Arm, build_worker, shared_weights
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
