"""Layers that keep a window only, on a CUDA GPU: the bits of whole layers, and transformers' logits."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.decoding.memory.model_shape import ModelShape
from tests.support.decode_truth import DecodeTruth
from tests.support.decoding import build
from tests.support.windows import FEW, HOST_LAYERS, WINDOW, checkpoints, outputs
from tests.unit.decoding.worker.test_worker_truth import SINGLE, WRONG, largest_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

LENGTHS = (200, 7, 33)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(checkpoints(lambda: tmp_path_factory.mktemp("checkpoint")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("selector", ["dense", "auto", "quest"])
@pytest.mark.parametrize("family", [f"{family}@{WINDOW}" for family in HOST_LAYERS])
def test_where_a_window_is_kept_no_bit_changes(
    path: Any, family: str, selector: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for windowed in (False, True):
        with monkeypatch.context() as patched:
            if not windowed:
                patched.setattr(ModelShape, "windowed", frozenset())
            worker = build(path(family), selector, *FEW, dtype=dtype, device="cuda")
        assert bool(worker._cache.windowed) == windowed
        found.append(outputs(worker, selector == "auto"))
    assert all(each.isfinite().all() for each in found[0])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("family", ["gemma3", "gpt-oss", "mistral"])
def test_beyond_a_window_tokens_are_transformers(
    path: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = path(f"{family}@{WINDOW}")
    truth = DecodeTruth(directory, torch.float32)
    right = build(directory, "dense", device="cuda")
    assert largest_error(right, truth, lengths=LENGTHS)[0] < SINGLE
    # The control: a ring one page too small.
    monkeypatch.setattr(ModelShape, "longest_window", WINDOW - 32)
    wrong = build(directory, "dense", device="cuda")
    assert largest_error(wrong, truth, lengths=LENGTHS)[0] > WRONG
