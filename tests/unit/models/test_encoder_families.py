"""The table of encoders: who is served, as what, and which configs are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.encoders.encoder import FAMILIES
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.families import family_of
from hiscore.models.model_classes import MODEL_CLASSES
from hiscore.models.support import servable, undecodable, unscorable, unsupported
from tests.support import tiny_encoders

CHANGES = {"electra": {"embedding_size": 64, "hidden_size": 64}}
DISTILBERT, ALBERT, MPNET, EUROBERT, NEW = (
    {"model_type": name} for name in ("distilbert", "albert", "mpnet", "eurobert", "new")
)
FOUR_HEADS = {"hidden_size": 64, "num_attention_heads": 4}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}


def test_every_family_is_loaded_and_compared_with_transformers() -> None:
    assert set(FAMILIES) == set(ENCODER_FAMILIES)
    assert {tiny.model_type for tiny in tiny_encoders.ENCODERS.values()} == set(ENCODER_FAMILIES)


def test_a_family_is_found_by_its_model_type() -> None:
    for name, family in ENCODER_FAMILIES.items():
        assert family_of({"model_type": name}) is family
        assert family.name == name
        config = {"model_type": name, "architectures": [*MODEL_CLASSES[name]]}
        assert unsupported(config | CHANGES.get(name, {})) is None


def test_an_encoder_is_scored_and_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "tokenizer.json").write_text("{}")
    capabilities = servable(tmp_path)
    assert capabilities.models == ("score", "classify", "tokenizer", "scorer")
    assert capabilities.selectors == ()
    assert "has no head for tokens" in capabilities.left_out["decode"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is none of gelu"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "another encoder"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type 'relative_key' is not absolute",
        ),
        ({"hidden_size": 65, "num_attention_heads": 4}, "hidden_size 65 is not a multiple"),
        ({"hidden_size": [64]}, "config.json is malformed"),
        ({"model_type": "modernbert", "hidden_activation": "mish"}, "hidden_activation 'mish'"),
        ({"model_type": "modernbert", "classifier_activation": "mish"}, "classifier_activation 'mish'"),
        ({"model_type": "modernbert", "rope_scaling": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ({"model_type": "deberta-v2", "pooler_hidden_act": "mish"}, "pooler_hidden_act 'mish'"),
        ({"model_type": "deberta-v2", "conv_kernel_size": 3}, "convolution"),
        ({"model_type": "modernbert", "partial_rotary_factor": 0.5}, "rotates a part of each head"),
        (DISTILBERT | {"dim": 65, "n_heads": 4}, "dim 65 is not a multiple of n_heads 4"),
        (DISTILBERT | {"activation": "mish"}, "activation 'mish' is none of gelu"),
        (ALBERT | {"num_hidden_groups": 0}, "num_hidden_groups is 0"),
        (MPNET | {"pad_token_id": 0}, "pad_token_id is 0, and MPNet's positions follow 1"),
        (MPNET | {"relative_attention_num_buckets": 16}, "_buckets is 16, and distances have 32"),
        (EUROBERT | {"classifier_pooling": "max"}, "classifier_pooling 'max' is unknown"),
        (
            EUROBERT | {"clf_pooling": "bos"},
            "clf_pooling is 'bos', classifier_pooling 'late': set both alike",
        ),
        (EUROBERT | {"num_key_value_heads": 5}, "12 attention heads cannot share 5 heads"),
        (EUROBERT | FOUR_HEADS | {"head_dim": 32}, "head_dim 32 of 4 heads is not hidden_size 64"),
        (NEW | FOUR_HEADS | {"head_dim": 32}, "head_dim 32 of 4 heads is not hidden_size 64"),
        (NEW | {"position_embedding_type": "absolute"}, "position_embedding_type 'absolute' is not rope"),
        (NEW | {"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm'"),
        (NEW | {"logn_attention_scale": True}, "logn_attention_scale"),
        (NEW | {"pack_qkv": False}, "pack_qkv is False"),
        (
            NEW | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope type 'dynamic' is none of default, ntk",
        ),
        ({"model_type": "electra", "hidden_size": 256}, "embedding_size 128 is not hidden_size 256"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    assert unscorable(BERT) is None
    classes = MODEL_CLASSES[changes.get("model_type", "bert")]
    assert reason in str(unscorable(BERT | {"architectures": [*classes]} | changes))
    assert undecodable(BERT | changes)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "ntk", "factor": 8.0, "mixed_b": 0.6},
        {"type": "ntk", "factor": 0.5},
        {"type": "ntk"},
        {"type": "linear", "factor": 2.0},
        {},
    ],
)
def test_a_scaling_of_gte_that_is_not_computed_is_refused(scaling: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = tiny_encoders.make("new", tmp_path)
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_scaling": scaling}))
    with pytest.raises(
        UnsupportedCheckpoint, match=r"transformers refuses config\.json: .*(rope_scaling|factor)"
    ):
        read_facts(checkpoint)


@pytest.mark.parametrize("name", tiny_encoders.ENCODERS)
def test_the_context_is_what_the_positions_hold(name: str, tmp_path: Path) -> None:
    """RoBERTa's table has two rows more than a text may have tokens."""
    facts = read_facts(tiny_encoders.make(name, tmp_path))
    assert (facts.context_length, facts.is_encoder, facts.is_classifier) == (
        tiny_encoders.CONTEXT,
        True,
        True,
    )
