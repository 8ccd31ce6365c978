"""The table of families: what each switch says of a checkpoint, and which configs are refused."""

from typing import Any

import pytest
from transformers import AutoConfig

from hiscore.models.config import Architecture, from_config
from hiscore.models.families import DECODER_FAMILIES, DSA_FAMILIES, family_of
from hiscore.models.support import unsupported
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
        assert unsupported({"model_type": name, "architectures": ["AnyForCausalLM"]}) is None
    assert family_of({"model_type": "mamba"}) is family_of({}) is None


def test_every_family_is_compared_with_transformers() -> None:
    assert {family for family, _ in tiny_models.FAMILIES.values()} == set(DECODER_FAMILIES)
    assert {family for family, _ in tiny_dsa.FAMILIES.values()} == set(DSA_FAMILIES)


def test_only_decoder_families_have_keys_for_every_head() -> None:
    assert {family.selectors for family in DECODER_FAMILIES.values()} == {("quest", "exact", "dense")}
    assert {family.selectors for family in DSA_FAMILIES.values()} == {("dsa", "dense")}


@pytest.mark.parametrize("model_type", DECODER_FAMILIES)
def test_what_tells_the_decoder_families_apart(model_type: str) -> None:
    gemma = {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 100}
    if model_type == "gemma2":
        gemma["attn_logit_softcapping"] = 2.0
    is_gemma = model_type.startswith("gemma")
    a = architecture(model_type, **(gemma if is_gemma else {}))
    assert (a.norm_plus_one, a.sandwich_norms) == (is_gemma, is_gemma)
    assert a.qk_norm == (model_type in ("qwen3", "qwen3_moe", "gemma3_text"))
    assert (a.qkv_bias, a.output_bias) == (model_type == "qwen2", False)
    assert a.embedding_scale == (8.0 if is_gemma else 1.0)
    assert a.attention_scale == pytest.approx(0.1 if is_gemma else HEAD_DIM**-0.5)
    assert a.attention_soft_cap == (2.0 if model_type == "gemma2" else None)
    assert a.logit_soft_cap == (3.0 if is_gemma else None)
    assert a.activation == ("gelu_pytorch_tanh" if is_gemma else "silu")
    # Only Gemma 3 rotates layers with a window in another way than those without.
    assert (None in a.rope_kinds) == (model_type != "gemma3_text")


def test_a_config_may_ask_for_biases() -> None:
    a = architecture("llama", attention_bias=True, mlp_bias=True)
    assert (a.qkv_bias, a.output_bias, a.mlp_bias) == (True, True, True)


def test_windows_come_from_layer_types_or_hold_for_all_layers() -> None:
    assert architecture("mistral", sliding_window=5).windows == (5,) * LAYERS
    assert architecture("mistral", sliding_window=None).windows == (None,) * LAYERS
    assert architecture("llama").windows == (None,) * LAYERS
    kinds = ["sliding_attention", "full_attention"] * 2
    assert architecture("gemma2", sliding_window=5, layer_types=kinds).windows == (5, None) * 2


def test_a_classifier_has_a_head_of_its_own_without_a_cap() -> None:
    tied = {"tie_word_embeddings": True, "final_logit_softcapping": 3.0}
    lm = architecture("gemma2", **tied)
    classifier = architecture("gemma2", architecture="Gemma2ForSequenceClassification", **tied)
    assert (lm.is_classifier, lm.tied_head, lm.logit_soft_cap) == (False, True, 3.0)
    assert (classifier.is_classifier, classifier.tied_head, classifier.logit_soft_cap) == (True, False, None)


def test_the_first_broken_rule_is_reported() -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "relu"}
    assert "activation 'relu'" in str(unsupported({**config, "rope_scaling": {"type": "dynamic"}}))
    assert "quantised" in str(unsupported({**config, "quantization_config": {"bits": 4}}))
