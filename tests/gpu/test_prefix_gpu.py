"""Prefixes found on device or host, on a GPU: see tests/unit/decoding/worker/test_prefix.py."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint
from tests.unit.decoding.worker.test_prefix import (
    LATER,
    OTHER,
    SETTINGS,
    START,
    Seen,
    leave,
    leave_and_evict,
    run,
)

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
        stays = selector in ("dense", "auto")
        assert seen.fetched == (128 if caching and not stays else 0)
        logits.append(torch.stack(seen.logits))
    assert torch.equal(*logits)


@pytest.mark.parametrize("stay", [0, 1, 3, 4])
def test_what_stays_on_the_device_has_the_bits_of_what_is_copied_from_the_host(
    stay: int, tmp_path: Path
) -> None:
    """As many blocks as others have left of four. The control: what is changed on the device shows."""
    family, top_k, buffer = SETTINGS["auto"]
    path, logits = checkpoint(family, tmp_path), []
    for caching, spoiled in ((False, False), (True, False), (True, True)):
        on = {"device": "cuda", "dtype": torch.bfloat16, "prefix_cache": caching}
        seen = Seen(build(path, "auto", top_k, buffer, chunk=64, **on))
        with serving(seen.worker) as client:
            run(client, START)
            leave_and_evict(client, stay)
            if spoiled:
                torch.cuda.synchronize()
                with torch.inference_mode():
                    seen.worker._cache.buffer += 1
                torch.cuda.synchronize()
            run(client, LATER)
            assert client.stats.cached_on_device == 32 * stay * caching
        assert seen.fetched == (128 - 32 * stay) * caching
        logits.append(torch.stack(seen.logits))
    without, found, changed = logits
    assert torch.equal(found, without)
    assert torch.equal(found[1], changed[1]) == (stay == 0)


def test_what_was_generated_stays_on_the_device_in_all_layers(tmp_path: Path) -> None:
    """Steps write it to dense layers by host page alone, where a prefill gets it. The control changes it there."""
    family, top_k, buffer = SETTINGS["auto"]
    path, logits = checkpoint(family, tmp_path), []
    for stays, spoiled in ((True, False), (False, False), (True, True)):
        on = {"device": "cuda", "dtype": torch.bfloat16, "prefix_cache": True}
        seen = Seen(build(path, "auto", top_k, buffer, chunk=64, **on))
        with serving(seen.worker) as client:
            (outcome,) = run(client, START[:40], max_tokens=60)
            leave(client)
            if not stays:
                leave_and_evict(client, 0)
            if spoiled:
                torch.cuda.synchronize()
                with torch.inference_mode():
                    seen.worker._cache.dense_kv += 1
                torch.cuda.synchronize()
            run(client, np.concatenate((START[:40], np.array(outcome.tokens, np.int32), OTHER[:12])))
        assert seen.fetched == (0 if stays else 96)
        logits.append(seen.logits[1])
    in_place, from_host, changed = logits
    assert torch.equal(in_place, from_host)
    assert not torch.equal(in_place, changed)
