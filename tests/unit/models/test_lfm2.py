"""LFM2, whose recurrent layers are gated convolutions: controls of its state, and what is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.models.config import read_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.support import servable
from hiscore.recurrence.torch_recurrence import TorchRecurrence
from hiscore.scoring import pair_scorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.server.server_resources import ServerResources
from tests.support.config_mutations import changed
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY, make


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("lfm2", tmp_path_factory.mktemp("lfm2"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"conv_bias": True}, "conv_bias is True, and no bias is computed"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1"),
        ({"layer_types": ["conv"] * 4}, "no layer of layer_types is full_attention"),
        (
            {"layer_types": ["linear_attention", "full_attention", "conv", "conv"]},
            "none of full_attention, conv",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    changes: dict[str, Any], reason: str, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=reason):
        read_architecture(changed(checkpoint, tmp_path / "changed", **changes))


def test_it_is_computed_on_one_cpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"scorer", "decode"} <= set(servable(checkpoint).models)
    on_gpu = servable(checkpoint, on_gpu=True).left_out
    assert "set DEVICE=cpu" in on_gpu["scorer"]
    assert "on a CPU alone" in on_gpu["decode"]
    assert "compute on one device" in servable(checkpoint, ranks=2).left_out["scorer"]
    monkeypatch.setattr(pair_scorer, "use_device", lambda _: type("Gpu", (), {"type": "cuda"})())
    with pytest.raises(UnsupportedCheckpoint, match="'lfm2' is scored on a CPU alone: set DEVICE=cpu"):
        pair_scorer.make_scorer(checkpoint, "cuda", "auto", 64, None, None, ServerResources())


def test_control_items_behind_another_state_have_other_scores(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right ones are transformers': tests/unit/scoring/test_scorer.py, decode's in test_worker_truth.py."""
    call = random_tokens(np.random.default_rng(1), 70, [3, 1], VOCABULARY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096, query_cache_bytes=0)
    options = ScoreOptions(apply_softmax=True)
    (right,) = score(scorer, [call], options)
    convolve = TorchRecurrence._convolve

    def in_reverse(self: Any, layer: int, *rest: Any) -> Any:
        if not layer:
            for _, convolution, _ in self._batches:
                if len(convolution._ends):
                    convolution._kept = convolution._kept.flip(1)
        return convolve(self, layer, *rest)

    monkeypatch.setattr(TorchRecurrence, "_convolve", in_reverse)
    (wrong,) = score(scorer, [call], options)
    assert np.abs(wrong - right).max() > 1e-3
