"""DeepSeek-V3.2 and GLM-MoE-DSA as published, against transformers' forward on the dequantised weights."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers import moe
from hiscore.models.deepseek.decoder import DsaDecoder
from tests.support import published_dsa, tiny_dsa
from tests.support.dsa_rank_work import hidden_of

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
IDS = torch.randint(tiny_dsa.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
# float32 sums in another order over three layers; logits have a spread of 1.5.
NEAR = 1e-4


@pytest.fixture(scope="module", params=published_dsa.OF_FAMILY)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return published_dsa.make(request.param, tmp_path_factory.mktemp(request.param))


def logits(checkpoint: Path) -> Tensor:
    decoder = DsaDecoder(checkpoint, CPU, torch.float32)
    return hidden_of(decoder, IDS) @ decoder.weights.head.T


def truth(dense: Path) -> Tensor:
    with torch.inference_mode():
        return tiny_dsa.reference(dense, torch.float32)(IDS[None], use_cache=False).logits[0]  # type: ignore[no-any-return]


def changed(published: Path, directory: Path, **config: Any) -> Path:
    shutil.copytree(published, directory)
    original = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**original, **config}))
    return directory


def test_a_published_checkpoint_equals_its_dequantised_weights(
    both: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    published, dense = both
    with caplog.at_level(logging.INFO):
        found = logits(published)
    assert (found - truth(dense)).abs().max() < NEAR
    left_out = [each.message for each in caplog.records if "model.layers.3" in each.message]
    assert len(left_out) == 1
    assert "predicts further tokens" in left_out[0]


@pytest.mark.exhaustive
def test_control_transposed_scales_are_told_apart(both: tuple[Path, Path], tmp_path: Path) -> None:
    published, dense = both
    stored = published_dsa.read_files(published)
    square = [name for name in stored if name.endswith("scale_inv") and len(set(stored[name].shape)) == 1]
    assert len(square) > 10
    stored |= {name: stored[name].t().contiguous() for name in square}
    turned = changed(published, tmp_path / "turned")
    published_dsa.write_files(stored, turned)
    assert (logits(turned) - truth(dense)).abs().max() > 100 * NEAR


@pytest.mark.exhaustive
def test_control_a_correction_among_the_weights_is_told_apart(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    published, dense = both

    def weighted(w: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        experts, _ = route(w, scores)
        chosen = (scores.sigmoid() + w.correction).gather(1, experts)
        shares = chosen / chosen.sum(dim=1, keepdim=True) if w.routing.normalise else chosen
        return experts, shares * w.routing.scale

    route = moe.route
    monkeypatch.setattr(moe, "route", weighted)
    assert (logits(published) - truth(dense)).abs().max() > 100 * NEAR
