"""No key of config.json is silently ignored that transformers honours.

Every key that the config class of some family has gets other values, in every family, and so do keys that
transformers looks for without declaring them. The scorer must then refuse the checkpoint, or compute what
transformers computes.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hiscore.models import config
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.families import DECODER_FAMILIES
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.scorer import Scorer
from tests.support.comparison import check
from tests.support.config_mutations import TOGETHER, changed, keys_of, mutations
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import FAMILIES, VOCABULARY, make
from tests.support.truth import Truth

pytestmark = pytest.mark.usefixtures("short_reprs")

CALL = random_tokens(np.random.default_rng(0), 13, [7, 3], VOCABULARY)
KEYS = keys_of(model_type for model_type, _ in FAMILIES.values())


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
        for changes in mutations(original, KEYS)
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
