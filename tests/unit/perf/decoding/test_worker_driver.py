"""A worker driven without an engine."""

import numpy as np
import pytest
import torch

from hiscore.decoding.memory.sizing import MemoryBudget
from perf.decoding.arms import PLENTY, Arm, build_worker, shared_weights
from perf.decoding.worker_driver import Driver
from perf.models import random_checkpoint as geometry


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with shared_weights():
        yield geometry.write_config("tiny", tmp_path_factory.mktemp("tiny"), context=512)


def test_fed_tokens_are_judged_as_a_prefill_would(tiny) -> None:
    """Steps fed with a text's tokens give the logits of that text prefilled; of another text they do not."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 512, 70).astype(np.int32)
    arm = Arm("dense", {"selector": "dense"})

    def logits(prompt: int) -> torch.Tensor:
        driver = Driver(
            build_worker(tiny, arm, MemoryBudget(PLENTY, PLENTY, 1)), [text[:prompt]], 70 - prompt
        )
        for at in range(prompt, 70):
            driver.feed(text[at : at + 1])
        return driver.logits[0]

    # Float32 sums in another order, of logits below 1.
    assert torch.allclose(logits(40), logits(70), rtol=0, atol=1e-4)
    text[30] += 1
    changed = logits(40)
    text[30] -= 1
    assert not torch.allclose(changed, logits(70), rtol=0, atol=1e-4)
