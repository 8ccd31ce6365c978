"""Gemma 4: which layers have keys of their own, and what its config can say that is not computed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.models import decoder, gemma4
from hiscore.models.config import read_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.support import servable, unscorable
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
    return make("gemma4", tmp_path_factory.mktemp("gemma4"))


def test_the_last_layers_read_the_keys_of_the_last_of_their_kind(checkpoint: Path) -> None:
    a, _ = read_architecture(checkpoint)
    assert a.kv_sources == (0, 1, 0, 1)
    assert a.head_sizes == ((2, 16), (2, 32)) * 2
    assert (a.attention_layers, a.key_width) == (2, 64)
    assert a.mlp_widths == (96, 96, 192, 192)


def test_a_published_config_says_the_same(checkpoint: Path, tmp_path: Path) -> None:
    """Google's have the sizes of full attention under names of their own, not by layer."""
    config = json.loads((checkpoint / "config.json").read_text())
    del config["per_layer_config"]
    published = changed(checkpoint, tmp_path / "changed")
    (published / "config.json").write_text(json.dumps(config | {"global_head_dim": 32}))
    assert read_architecture(published)[0] == read_architecture(checkpoint)[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"per_layer_config": {"1": {"head_dim": 32, "intermediate_size": 48}}},
            "differ in intermediate_size",
        ),
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "layers of the type full_attention differ in size"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3: no layer before them has keys for all"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
        ({"vocab_size_per_layer_input": 400}, "vocab_size_per_layer_input is 400, of 500 tokens"),
        ({"use_bidirectional_attention": "all"}, "it attends in both directions"),
        ({"hidden_activation": "relu"}, "activation 'relu' is none of"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    changes: dict[str, Any], reason: str, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=reason):
        read_architecture(changed(checkpoint, tmp_path / "changed", **changes))


def test_it_is_scored_on_one_cpu(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unscorable(json.loads((checkpoint / "config.json").read_text())) is None
    assert "layers of different sizes, which are scored alone" in servable(checkpoint).left_out["decode"]
    assert "compute on one device" in servable(checkpoint, ranks=2).left_out["scorer"]
    assert "set DEVICE=cpu" in servable(checkpoint, on_gpu=True).left_out["scorer"]
    monkeypatch.setattr(pair_scorer, "use_device", lambda _: type("Gpu", (), {"type": "cuda"})())
    with pytest.raises(UnsupportedCheckpoint, match="'gemma4_text' is scored on a CPU alone: set DEVICE=cpu"):
        pair_scorer.make_scorer(checkpoint, "cuda", "auto", 64, None, None, ServerResources())


def keep_factors(layer: Any, x: Any, *rest: Any) -> Any:
    h = gemma4.finish_layer(layer, x, *rest)
    x /= layer.gemma4.factor
    return h


def leave_own(layer: Any, x: Any, update: Any, own: Any, *rest: Any) -> Any:
    return gemma4.finish_layer(layer, x, update, None, *rest)


def another_layers(layer: Any, x: Any, update: Any, own: Any, *rest: Any) -> Any:
    return gemma4.finish_layer(layer, x, update, own.flip(1), *rest)


@pytest.mark.parametrize("wrong", [keep_factors, leave_own, another_layers])
def test_control_a_part_left_out_gives_other_scores(
    wrong: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of them the scores are transformers': tests/unit/scoring/test_scorer.py."""
    call = random_tokens(np.random.default_rng(1), 20, [3, 9], VOCABULARY)

    def scores() -> np.ndarray:
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
        return score(scorer, [call], ScoreOptions(apply_softmax=True))[0]

    right = scores()
    monkeypatch.setattr(decoder, "finish_layer", wrong)
    assert np.abs(scores() - right).max() > 1e-3
