"""No key of config.json is silently ignored that transformers honours.

Every key that the config class of some family has gets other values, in every family, and so do keys that
transformers looks for without declaring them. The scorer must then refuse the checkpoint, or compute what
transformers computes.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.models.llama.modeling_llama import LlamaMLP

from hiscore.models import config
from hiscore.models.config import read_architecture
from hiscore.models.families import DECODER_FAMILIES
from hiscore.scoring import pair_scorer
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources
from tests.support.comparison import check
from tests.support.config_mutations import TOGETHER, changed, keys_of, verdict_of, wrong
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import FAMILIES, VOCABULARY, make
from tests.support.truth import Truth

pytestmark = pytest.mark.usefixtures("short_reprs")

CALL = random_tokens(np.random.default_rng(0), 13, [7, 3], VOCABULARY)
KEYS = keys_of(model_type for model_type, _ in FAMILIES.values())


def read(checkpoint: Path) -> Any:
    architecture, of_texts = read_architecture(checkpoint)
    return architecture, of_texts.rope_parameters


def load(checkpoint: Path) -> Scorer:
    return make_scorer(checkpoint, "cpu", "float32", 64, 0, None, ServerResources())


def truth(checkpoint: Path) -> tuple[np.ndarray, bool]:
    found = Truth(checkpoint)
    return found.scores(CALL.query, CALL.items, LABELS), not found.is_classifier


def compare(scorer: Scorer, expected: tuple[np.ndarray, bool]) -> None:
    check(score(scorer, [CALL], ScoreOptions())[0], *expected)


verdict = partial(verdict_of, load, truth, compare)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "labels"),
    first_of(
        *((family, None) for family in FAMILIES),
        *(("llama", 3), ("gemma2", 1)),
        *((family, 2) for family in ("llama-mean", "embedding-gemma", "qwen2-both-ways")),
    ),
)
def test_a_key_is_computed_as_by_transformers_or_refused(
    family: str, labels: int | None, tmp_path: Path
) -> None:
    source = make(family, tmp_path / "source", labels)
    found = wrong(source, tmp_path / "changed", KEYS, read, verdict)
    if family == "gemma4-experts":  # transformers 5.24 slices inputs by layer, of which this family has none
        found.pop("{'num_kv_shared_layers': 1}", None)
    assert found == {}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_control_a_key_of_another_family_that_transformers_obeys_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, though it was changed together with others."""
    forward = LlamaMLP.forward
    monkeypatch.setattr(
        LlamaMLP, "forward", lambda mlp, x: forward(mlp, x) * getattr(mlp.config, "logits_scaling", 1)
    )
    found = wrong(make("llama", tmp_path / "source"), tmp_path / "changed", KEYS, read, verdict)
    together, alone = found
    assert "'logits_scaling': 3" in together
    assert alone == str({"logits_scaling": 3})
    assert all(said.startswith("is computed otherwise") for said in found.values())


def test_control_a_rule_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = changed(make("llama", tmp_path / "source"), tmp_path / "changed", is_causal=False)
    assert verdict(checkpoint) is None
    for module in (config, pair_scorer):
        monkeypatch.setattr(module, "unscorable", lambda *_: None)
    assert str(verdict(checkpoint)).startswith("is computed otherwise")


def test_control_an_ignored_key_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = changed(make("llama", tmp_path / "source"), tmp_path / "changed", **TOGETHER[0])
    assert verdict(checkpoint) is None
    obeyed = replace(DECODER_FAMILIES["llama"], windowed="by layer type")
    monkeypatch.setitem(DECODER_FAMILIES, "llama", obeyed)
    assert str(verdict(checkpoint)).startswith("is computed otherwise")
