"""DeepSeek-V3.2 and GLM-MoE-DSA as published, against transformers' forward on the dequantised weights."""

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers import moe
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.loader import load_weights
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.support import unsupported
from hiscore.models.weight_bytes import weight_bytes
from tests.support import published_dsa, tiny_dsa

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
    staged = StagedLatents(decoder.architecture, len(IDS), CPU, decoder.dtype)
    staged.plan([Segment(torch.arange(len(IDS)), len(IDS))])
    with torch.inference_mode():
        hidden = decoder.tail(*decoder.body(IDS.int(), torch.arange(len(IDS)).int(), staged))
        return hidden @ decoder.weights.head.T


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


def test_control_transposed_scales_are_told_apart(both: tuple[Path, Path], tmp_path: Path) -> None:
    published, dense = both
    stored = published_dsa.read_files(published)
    square = [name for name in stored if name.endswith("scale_inv") and len(set(stored[name].shape)) == 1]
    assert len(square) > 10
    stored |= {name: stored[name].t().contiguous() for name in square}
    turned = changed(published, tmp_path / "turned")
    published_dsa.write_files(stored, turned)
    assert (logits(turned) - truth(dense)).abs().max() > 100 * NEAR


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


def test_an_unannounced_layer_behind_the_last_is_refused(both: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint = changed(both[0], tmp_path / "unannounced", num_nextn_predict_layers=0)
    with pytest.raises(UnsupportedCheckpoint, match=r"'model\.layers\.3\."):
        DsaDecoder(checkpoint, CPU, torch.float32)


def test_bytes_are_those_of_what_is_loaded(both: tuple[Path, Path]) -> None:
    published, dense = both
    decoder = DsaDecoder(published, CPU, torch.float32)
    loaded = sum(each.nbytes for each in tensors_of(decoder.weights))
    assert weight_bytes(published, 4) == weight_bytes(dense, 4) == loaded


def test_bytes_in_fp8_are_those_of_what_stays_so(both: tuple[Path, Path]) -> None:
    a, _ = read_architecture(both[0])
    load = partial(load_weights, both[0], a, dtype=torch.float32, keeps_fp8=True)
    loaded = sum(each.nbytes for each in tensors_of(load(CPU)))
    assert planned_bytes(load) == loaded
    # Control: the same in the model's dtype.
    assert weight_bytes(both[0], 4) > 2 * loaded


def tensors_of(weights: Any) -> list[Tensor]:
    if isinstance(weights, Tensor):
        return [weights]
    parts = weights if isinstance(weights, tuple) else vars(weights).values()
    is_nest = (Tensor, tuple)
    return [
        found
        for part in parts
        if isinstance(part, is_nest) or hasattr(part, "__dataclass_fields__")
        for found in tensors_of(part)
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"rope_interleave": False}, "rope_interleave is False"),
        ({"indexer_rope_interleave": "other"}, "indexer_rope_interleave is other"),
        ({"topk_method": "group_limited_greedy"}, "topk_method 'group_limited_greedy'"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
    ],
)
def test_a_key_that_is_not_computed_is_refused(
    both: tuple[Path, Path], changes: dict[str, Any], reason: str
) -> None:
    config = json.loads((both[0] / "config.json").read_text())
    assert unsupported(config) is None
    assert reason in str(unsupported({**config, **changes}))


def test_an_unknown_format_of_scales_is_refused(both: tuple[Path, Path]) -> None:
    config = json.loads((both[0] / "config.json").read_text())
    scaled = config["quantization_config"] | {"scale_fmt": "int8"}
    assert "scale_fmt 'int8'" in str(unsupported({**config, "quantization_config": scaled}))
