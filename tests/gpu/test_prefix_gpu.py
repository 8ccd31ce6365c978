"""Prefixes found on the host, on a GPU: see tests/unit/decoding/worker/test_prefix.py."""

from pathlib import Path

import pytest
import torch

from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint
from tests.unit.decoding.worker.test_prefix import LATER, OTHER, SETTINGS, START, Seen, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.mark.parametrize("selector", SETTINGS)
def test_a_prefix_that_was_found_changes_no_bit(selector: str, tmp_path: Path) -> None:
    family, top_k, buffer = SETTINGS[selector]
    path, logits = checkpoint(family, tmp_path), []
    for caching in (True, False):
        on = {"device": "cuda", "dtype": torch.bfloat16, "prefix_cache": caching}
        seen = Seen(build(path, selector, top_k, buffer, chunk=64, **on))
        with serving(seen.worker) as client:
            run(client, START, OTHER, LATER)
        assert seen.prefilled == 440 - 128 * caching
        logits.append(torch.stack(seen.logits))
    assert torch.equal(*logits)
