"""The table of families: what each switch says of a checkpoint, and which configs are refused."""

from typing import Any

import pytest
from transformers import AutoConfig

from hiscore.models.config import Architecture, from_config
from hiscore.models.families import DECODER_FAMILIES, DSA_FAMILIES, family_of
from hiscore.models.model_classes import MODEL_CLASSES
from hiscore.models.support import unsupported
from hiscore.models.text_towers import TEXT_TOWERS, text_config, text_tensor
from tests.support import tiny_dsa, tiny_models

HEAD_DIM, HIDDEN, LAYERS = 24, 64, 4


def architecture(model_type: str, **changes: Any) -> Architecture:
    sizes = {**tiny_models.SIZES, "head_dim": HEAD_DIM, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    config = AutoConfig.for_model(model_type, **{**sizes, **changes})
    config.architectures = [changes.get("architecture", "AnyForCausalLM")]
    return from_config(config)


def test_a_family_is_found_by_its_model_type() -> None:
    for name, family in {**DECODER_FAMILIES, **DSA_FAMILIES}.items():
        assert family_of({"model_type": name}) is family
        assert family.name == name
        # The config of a text tower alone names no class.
        if classes := MODEL_CLASSES.get(name):
            assert unsupported({"model_type": name, "architectures": [classes[0]]}) is None
    assert family_of({"model_type": "mamba"}) is family_of({}) is None


def test_every_family_is_compared_with_transformers() -> None:
    rows = (*tiny_models.FAMILIES.values(), *tiny_models.BOTH_WAYS.values())
    configs = [{**changes, "model_type": name} for name, changes in rows]
    assert {family_of(config).name for config in configs} == set(DECODER_FAMILIES)
    towers = {str(config["model_type"]) for config in configs} - set(DECODER_FAMILIES)
    assert towers == set(TEXT_TOWERS)
    assert {family for family, _ in tiny_dsa.FAMILIES.values()} == set(DSA_FAMILIES)


def test_a_qwen2_has_the_same_biases_whatever_its_config_says() -> None:
    """transformers' never reads `attention_bias`; a qwen3 (the control) obeys it."""
    for asked in (True, False):
        qwen2, qwen3 = (architecture(name, attention_bias=asked) for name in ("qwen2", "qwen3"))
        assert (qwen2.qkv_bias, qwen2.output_bias) == (True, False)
        assert (qwen3.qkv_bias, qwen3.output_bias) == (asked, asked)


def test_a_classifier_has_a_head_of_its_own_without_a_cap() -> None:
    tied = {"tie_word_embeddings": True, "final_logit_softcapping": 3.0}
    lm = architecture("gemma2", **tied)
    classifier = architecture("gemma2", architecture="Gemma2ForSequenceClassification", **tied)
    assert (lm.is_classifier, lm.tied_head, lm.logit_soft_cap) == (False, True, 3.0)
    assert (classifier.is_classifier, classifier.tied_head, classifier.logit_soft_cap) == (True, False, None)


def test_a_wrapped_config_is_read_as_that_of_its_text_tower() -> None:
    outer = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]}
    inner = {"model_type": "ministral3", "architectures": None, "hidden_act": "silu"}
    assert text_config({**outer, "text_config": inner}) == {**inner, "architectures": outer["architectures"]}
    assert unsupported({**outer, "text_config": inner}) is None
    # Where the tower is not named it is the one that transformers takes.
    assert family_of({**outer, "text_config": {}}) is DECODER_FAMILIES["mistral"]
    assert "relu" in str(unsupported({**outer, "text_config": {**inner, "hidden_act": "relu"}}))
    assert "quantised" in str(
        unsupported({**outer, "text_config": inner, "quantization_config": {"bits": 4}})
    )
    mamba = {**outer, "text_config": {"model_type": "mamba"}}
    assert family_of(mamba) is None
    assert "'mistral3' with a text_config of 'mamba' is none of" in str(unsupported(mamba))
    # Qwen's older configs do not nest.
    flat = {
        "model_type": "qwen2_5_vl",
        "hidden_act": "relu",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    }
    assert family_of(flat) is DECODER_FAMILIES["qwen2_5_vl_text"]
    assert "relu" in str(unsupported(flat))
    assert unsupported({**flat, "hidden_act": "silu", "rope_scaling": {"type": "mrope"}}) is None


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("score.weight", "score.weight"),
        ("visual.blocks.0.attn.qkv.weight", None),
        ("model.visual.merger.norm.weight", None),
        ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", None),
        ("model.multi_modal_projector.linear_1.weight", None),
        # Neither is known: the loader reports it.
        ("model.audio_tower.output_proj.weight", None),
        ("depth_tower.conv.weight", "depth_tower.conv.weight"),
    ],
)
def test_tensors_of_a_text_tower_have_the_names_of_a_model_of_texts(stored: str, name: str | None) -> None:
    assert text_tensor(stored) == name
