"""No key of config.json is silently ignored that transformers honours.

Every key that the config class of some family has gets other values, in every family, and so do keys that
transformers looks for without declaring them. The scorer must then refuse the checkpoint, or compute what
transformers computes.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from hiscore.models import config
from hiscore.models.config import UnsupportedCheckpoint
from hiscore.models.families import DECODER_FAMILIES
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.scorer import Scorer
from tests.support.comparison import check
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import FAMILIES, LLAMA3, VOCABULARY, YARN, make
from tests.support.truth import Truth

CALL = random_tokens(np.random.default_rng(0), 13, [7, 3], VOCABULARY)
ROPES: list[Any] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0, "partial_rotary_factor": 0.5},
    {"type": "dynamic", "factor": 3.0},
    {"rope_type": "linear"},
    {"rope_type": "linear", "factor": "twice"},
    {"rope_type": "llama3", "factor": 8.0},
    {"rope_type": "yarn"},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1_024},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": None},
    {"rope_type": None},
    {},
    {**YARN, "factor": 8.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.7, "truncate": False},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5},
    LLAMA3,
    {
        "full_attention": {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
]
FULL, SLIDING = "full_attention", "sliding_attention"
VALUES: dict[str, list[Any]] = {
    "hidden_act": ["relu", "gelu", "silu", "gelu_pytorch_tanh"],
    "hidden_activation": ["relu", "gelu", "silu", "gelu_pytorch_tanh", None],
    "is_causal": [False, None, True],
    "layer_types": [[SLIDING] * 4, [FULL, SLIDING] * 2, ["chunked_attention"] * 4, [FULL] * 3],
    "partial_rotary_factor": [0.5, 1.0],
    "per_layer_config": [{"0": {"intermediate_size": 48}}],
    "rope_local_base_freq": [300.0],
    "rope_parameters": ROPES,
    "rope_scaling": ROPES,
    "rope_theta": [500.0],
    "sliding_window": [None, 3, 9],
    "use_sliding_window": [True, False],
}
"""Those of special meaning; the others are changed by their type."""
TOGETHER: list[dict[str, Any]] = [
    {"layer_types": [SLIDING] * 4, "sliding_window": 5},
    {"layer_types": [FULL, SLIDING] * 2, "sliding_window": 5, "use_sliding_window": True},
    {"max_window_layers": 1, "sliding_window": 5, "use_sliding_window": True},
    {"rope_parameters": ROPES[0], "rope_scaling": ROPES[2]},
    {"rope_parameters": ROPES[0], "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
]
"""Keys that change nothing one at a time."""
IGNORED = {"model_type", "return_dict"}
"""Keys that choose another class, or the shape in which transformers returns the same."""


def others(value: Any) -> list[Any]:
    """Other values of a key."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value // 2]
        case float():
            return [2 * value + 0.25]
        case None:
            return [True, 3, 0.5]
    return []


EVERY_KEY = VALUES.keys() | {
    field.name
    for model_type, _ in FAMILIES.values()
    for field in dataclasses.fields(type(AutoConfig.for_model(model_type)))
}


def mutations(original: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in sorted(EVERY_KEY - IGNORED):
        for value in VALUES.get(key) or others(original.get(key)):
            if key not in original or original[key] != value:
                yield {key: value}
    yield from TOGETHER


def verdict(checkpoint: Path) -> str | None:
    """What is wrong with how a checkpoint is served, if anything."""
    try:
        scorer = Scorer(checkpoint, "cpu", "float32", 64, query_cache_bytes=0)
    except UnsupportedCheckpoint as refusal:
        return None if str(refusal) else "refused without a reason"
    except Exception as error:
        return f"fails with {error!r}"
    try:
        truth = Truth(checkpoint)
        expected = truth.scores(CALL.query, CALL.items, LABELS)
    except Exception as error:
        return f"is served, and transformers refuses it: {error!r}"
    try:
        check(score(scorer, [CALL], ScoreOptions())[0], expected, not truth.is_classifier)
    except Exception as error:
        return f"is computed otherwise: {error!r}"
    return None


def changed(source: Path, target: Path, **changes: Any) -> Path:
    """The same checkpoint with a changed config.json."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name != "config.json" and not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    original = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(original | changes))
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "labels"),
    [*((family, None) for family in FAMILIES), ("llama", 3), ("gemma2", 1)],
)
def test_a_key_is_computed_as_by_transformers_or_refused(
    family: str, labels: int | None, tmp_path: Path
) -> None:
    source = make(family, tmp_path / "source", labels)
    original = json.loads((source / "config.json").read_text())
    wrong = {
        str(changes): found
        for changes in mutations(original)
        if (found := verdict(changed(source, tmp_path / "changed", **changes)))
    }
    assert wrong == {}


def test_control_a_rule_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = changed(make("llama", tmp_path / "source"), tmp_path / "changed", is_causal=False)
    assert verdict(checkpoint) is None
    monkeypatch.setattr(config, "unscorable", lambda config: None)
    assert str(verdict(checkpoint)).startswith("is computed otherwise")


def test_control_a_key_that_transformers_ignores_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = changed(make("llama", tmp_path / "source"), tmp_path / "changed", **TOGETHER[0])
    assert verdict(checkpoint) is None
    obeyed = replace(DECODER_FAMILIES["llama"], windowed="by layer type")
    monkeypatch.setitem(DECODER_FAMILIES, "llama", obeyed)
    assert str(verdict(checkpoint)).startswith("is computed otherwise")
