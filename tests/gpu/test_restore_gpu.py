"""Sequences that select and come back from the host with their buffer alone, on a GPU."""

from functools import cache
from pathlib import Path

import pytest
import torch

from tests.support.decoding import checkpoint
from tests.unit.decoding.worker.test_worker_restore import SELECTING, interrupted

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.mark.parametrize("selector", SELECTING)
def test_one_that_selects_goes_on_with_its_buffer_alone(selector: str, tmp_path: Path) -> None:
    """See tests/unit/decoding/worker/test_worker_restore.py, which has the control."""
    path = cache(lambda family: checkpoint(family, tmp_path))
    on = {"device": "cuda", "dtype": torch.bfloat16}
    whole, all_tokens = interrupted(path, selector, alone=False, **on)
    found, copied = interrupted(path, selector, alone=True, **on)
    assert found.isfinite().all()
    assert torch.equal(found, whole)
    assert max(copied) < min(all_tokens)
