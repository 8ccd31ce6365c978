"""Each switch of a family matters: with another value its scores are far from transformers'.

With the right values they are the same: tests/unit/scoring/test_scorer.py.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hiscore.models import config
from hiscore.models.families import DECODER_FAMILIES
from hiscore.models.family import SANDWICH_NORMS, BlockNorms
from hiscore.models.loader import CheckpointReader
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import FAMILIES, VOCABULARY

# Ten times what any comparison with transformers allows.
WRONG = 1e-3
UNNORMED_INPUT = BlockNorms(input=None, mlp="post_attention_layernorm")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gemma", {"scaled_embedding": False}),
        ("gemma", {"norm_plus_one": False}),
        ("gemma2", {"norms": replace(SANDWICH_NORMS, post_mlp=None)}),
        ("phi3", {"partial_rope": False}),
        ("phi3", {"windowed": "never"}),
        ("granite", {"embedding_scale_key": None}),
        ("granite", {"residual_scale_key": None}),
        ("granite", {"attention_multiplier_key": None}),
        ("granite", {"logit_divisor_key": None}),
        ("smollm3", {"unrotated": "none"}),
        ("smollm3", {"windowed": "never"}),
        ("olmo2", {"norms": UNNORMED_INPUT}),
        ("olmo3", {"windowed": "never"}),
        ("ministral", {"windowed": "never"}),
        ("ministral3", {"scaled_queries": False}),
        ("glm-9b", {"interleaved_rope": False}),
        ("glm4", {"interleaved_rope": False}),
        ("cohere", {"parallel_mlp": False}),
        ("cohere", {"logit_scale_key": None}),
        ("command-r-plus", {"qk_norm": False}),
        ("cohere2", {"interleaved_rope": False}),
        ("cohere2", {"unrotated": "none"}),
        ("exaone4", {"unrotated": "none"}),
        ("mistral3-images", {"scaled_queries": False}),
    ],
)
def test_another_value_gives_other_scores(
    name: str, changes: dict[str, Any], checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, truth = checkpoints(name)
    model_type, keys = FAMILIES[name]
    family = DECODER_FAMILIES[keys.get("text_config", {}).get("model_type", model_type)]
    call = random_tokens(np.random.default_rng(1), 40, [3, 9], VOCABULARY)
    expected = truth.scores(call.query, call.items, LABELS, True)

    def error() -> float:
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
        return float(np.abs(score(scorer, [call], ScoreOptions(apply_softmax=True))[0] - expected).max())

    assert error() < WRONG / 10
    monkeypatch.setitem(DECODER_FAMILIES, family.name, replace(family, **changes))
    monkeypatch.setattr(CheckpointReader, "unread", lambda *_, **__: [])
    monkeypatch.setattr(config, "unscorable", lambda _: None)
    assert error() > WRONG
