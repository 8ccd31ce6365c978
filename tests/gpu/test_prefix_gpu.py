"""Prefixes found on the host, on a GPU: see tests/unit/decoding/worker/test_prefix.py."""

from pathlib import Path

import pytest
import torch

from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint
from tests.support.windows import FEW, WINDOW
from tests.unit.decoding.worker.test_prefix import LATER, OTHER, SETTINGS, START, Seen, run
from tests.unit.decoding.worker.test_prefix_windows import MIDDLE

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


@pytest.mark.parametrize("selector", ["dense", "auto", "quest"])
@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "mistral"])
def test_a_prefix_that_goes_on_from_a_window_changes_no_bit(
    family: str, selector: str, tmp_path: Path
) -> None:
    """See tests/unit/decoding/worker/test_prefix_windows.py. The control: windows that are changed show."""
    path, logits = checkpoint(family, tmp_path, sliding_window=WINDOW), []
    for caching, spoiled in ((False, False), (True, False), (True, True)):
        on = {"device": "cuda", "dtype": torch.bfloat16, "prefix_cache": caching}
        seen = Seen(build(path, selector, *FEW, chunk=64, **on))
        with serving(seen.worker) as client:
            run(client, START, OTHER)
            if spoiled:
                torch.cuda.synchronize()
                with torch.inference_mode():
                    seen.worker._cache.window_kv += 1
                torch.cuda.synchronize()
            run(client, LATER, MIDDLE)
        assert seen.prefilled == 520 - (128 + 64) * caching
        logits.append(torch.stack(seen.logits))
    without, found, changed = logits
    assert found.isfinite().all()
    assert torch.equal(found, without)
    assert not torch.equal(found[2], changed[2])
    assert not torch.equal(found[3], changed[3])
