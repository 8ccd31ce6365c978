"""Which checkpoints are served, and what is said of the others."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.families import DECODER_FAMILIES, DSA_FAMILIES
from hiscore.models.support import (
    DEFAULT_MAX_CONTEXT,
    MODELS,
    context_limit,
    has_tokenizer,
    is_classifier,
    most_context,
    read_eos_ids,
    servable,
    undecodable,
    unscorable,
    unsupported,
)

DEEPSEEK: dict[str, Any] = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
GEMMA3: dict[str, Any] = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
DYNAMIC, PLAIN = {"type": "dynamic"}, {"rope_type": "default"}
HQQ = {"quantization_config": {"quant_method": "hqq"}}
QWEN3_5: dict[str, Any] = {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is none of llama,"),
        ({"architectures": None}, "'none' of model_type 'llama' is none of"),
        (HQQ, "its weights are quantised by 'hqq'; served are fp8"),
        ({"hidden_act": "relu"}, "activation 'relu' is none of silu,"),
        ({"rope_scaling": DYNAMIC}, "rope type 'dynamic' is none of default,"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope type 'longrope'"),
        ({"rope_parameters": PLAIN, "rope_scaling": DYNAMIC}, "rope type 'dynamic' is none of default,"),
        ({"rope_scaling": {"rope_type": "dynamic", "type": "default"}}, "rope type 'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_scaling": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"rope_parameters": {"full_attention": {}}}, "its kinds of layers"),
        ({"use_bidirectional_attention": True}, "both directions"),
        ({"is_causal": False}, "is_causal is False: it attends in both directions"),
        ({"is_causal": None}, "is_causal is None"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "its layers differ in size"),
        ({"transformers_weights": "other.safetensors"}, "weights of its own ('other.safetensors')"),
        (DEEPSEEK | {"is_causal": False}, "is_causal is False"),
        ({"rope_scaling": "yarn"}, "config.json is malformed"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "caps attention logits"),
        (QWEN3_5 | {"hidden_act": "gelu"}, "activation 'gelu' is not silu"),
        (QWEN3_5 | {"layer_types": ["linear_attention"]}, "no layer of layer_types is full_attention"),
    ],
)
def test_what_cannot_be_computed_is_named(changes: dict[str, Any], says: str) -> None:
    reason = unsupported(LLAMA | changes)
    assert reason is not None
    assert says in reason


def test_models_that_cannot_be_served_are_left_out_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    capabilities = servable(tmp_path)
    assert capabilities.models == ("scorer", "decode")
    assert "tokenizer.json" in capabilities.left_out["tokenizer"]
    assert capabilities.left_out["score"] == "it needs the tokenizer"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert set(servable(tmp_path).models) == {"tokenizer", "scorer", "score", "decode"}
    assert "no labels of its own" in servable(tmp_path).left_out["classify"]
    classifier = LLAMA | {"architectures": ["LlamaForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(classifier))
    assert set(servable(tmp_path).models) == {"tokenizer", "scorer", "score", "classify"}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mamba"}))
    assert servable(tmp_path).models == ("tokenizer",)


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_a_tokenizer_that_must_be_converted_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_text("")
    assert not has_tokenizer(tmp_path)
    assert f"has {name}, but no tokenizer.json" in servable(tmp_path).left_out["tokenizer"]
    (tmp_path / "tokenizer.json").write_text("{}")
    assert has_tokenizer(tmp_path)
    assert "tokenizer" in servable(tmp_path).models


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
KEYS = (
    "architectures", "hidden_act", "hidden_activation", "is_causal", "layer_types", "num_attention_heads",
    "num_key_value_heads", "per_layer_config", "quantization_config", "rope_parameters", "rope_scaling",
    "partial_rotary_factor",
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    model_type=st.sampled_from([*DECODER_FAMILIES, *DSA_FAMILIES, *ENCODER_FAMILIES, "mamba"]),
    changes=st.data(),
)
def test_any_config_is_served_or_refused(model_type: str, changes: st.DataObject) -> None:
    config = changes.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)))
    for reason in (
        unscorable({"model_type": model_type, **config}),
        undecodable({"model_type": model_type, **config}),
    ):
        assert reason is None or reason


def test_a_family_with_an_indexer_is_for_decode_alone_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    (tmp_path / "tokenizer.json").write_text("{}")
    capabilities = servable(tmp_path, on_gpu=True)
    assert capabilities.models == ("tokenizer", "decode")
    assert "set DEVICE=cpu" in capabilities.left_out["scorer"]
    assert capabilities.left_out["score"] == "it needs the scorer"
    assert capabilities.selectors == ("dsa", "dense")
    assert "quantised" in str(undecodable(DEEPSEEK | {"quantization_config": {"quant_method": "hqq"}}))


def test_decode_needs_a_head_for_tokens_of_a_family_it_knows(tmp_path: Path) -> None:
    assert undecodable(LLAMA) is None
    classifier = LLAMA | {"architectures": ["LlamaForSequenceClassification"]}
    assert unsupported(classifier) is None
    assert undecodable(classifier) == "architecture 'LlamaForSequenceClassification' has no head for tokens"
    assert "model_type 'mamba'" in str(undecodable(LLAMA | {"model_type": "mamba"}))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert servable(tmp_path).selectors[0] == "auto"
    assert "dsa" not in servable(tmp_path).selectors


def test_a_checkpoint_of_no_family_has_no_selector(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"model_type": "mamba"}))
    capabilities = servable(tmp_path)
    assert capabilities.selectors == ()
    assert capabilities.models == ()
    assert set(capabilities.left_out) == {*MODELS}
    assert capabilities.left_out["score"] == "it needs the tokenizer and the scorer"


def test_the_scorer_needs_more_than_a_family_that_is_computed() -> None:
    assert unscorable(LLAMA) is unscorable(DEEPSEEK) is unsupported(DEEPSEEK) is None
    assert unscorable(DEEPSEEK, on_gpu=True) == (
        "model_type 'deepseek_v32' is scored on a CPU alone: set DEVICE=cpu"
    )
    assert "model_type 'mamba'" in str(unscorable(LLAMA | {"model_type": "mamba"}))


@pytest.mark.parametrize(
    ("architectures", "classifies"),
    [
        (["LlamaForSequenceClassification"], True),
        (["LlamaForCausalLM"], False),
        (["LlamaForCausalLM", "LlamaForSequenceClassification"], False),
        ([], False),
        (None, False),
    ],
)
def test_the_first_architecture_tells_a_classifier(architectures: list[str] | None, classifies: bool) -> None:
    assert is_classifier(architectures) is classifies


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 2}, {5, 6}),
        ({"eos_token_id": 0}, {"eos_token_id": 2}, {0}),
        ({}, {"eos_token_id": 2}, {2}),
        (None, {"eos_token_id": [3]}, {3}),
        (None, {}, set()),
    ],
)
def test_what_ends_a_text_is_read_where_generation_is_configured(
    tmp_path: Path, generation: dict[str, Any] | None, config: dict[str, Any], ids: set[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_eos_ids(tmp_path) == ids


@pytest.mark.parametrize(
    ("of_checkpoint", "max_context", "served"),
    [
        (8_192, None, 8_192),
        (131_072, None, 32_768),
        (131_072, 65_536, 65_536),
        (8_192, 100, 100),
        (100, 100, 100),
    ],
)
def test_the_context_is_what_is_asked_for_or_what_pools_can_hold(
    of_checkpoint: int, max_context: int | None, served: int
) -> None:
    assert context_limit(of_checkpoint, max_context) == served


def test_no_context_is_longer_than_the_checkpoints() -> None:
    with pytest.raises(ValueError, match="MAX_CONTEXT is 101: the checkpoint's context holds 100 tokens"):
        context_limit(100, 101)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4_096}


@pytest.mark.parametrize(
    ("config", "max_context", "most"),
    [
        ({"model_type": "llama", "max_position_embeddings": 2_048}, None, 2_048),
        ({"model_type": "llama", "max_position_embeddings": 131_072}, None, DEFAULT_MAX_CONTEXT),
        ({"model_type": "llama", "max_position_embeddings": 131_072}, 65_536, 65_536),
        ({"model_type": "qwen3", "max_position_embeddings": 4_096, "rope_scaling": YARN}, None, 32_768),
        ({"model_type": "qwen3", "max_position_embeddings": 4_096, "rope_parameters": YARN}, 9_000, 9_000),
        # As Google publishes Gemma 3: transformers' class knows its context.
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, None, DEFAULT_MAX_CONTEXT),
        ({"model_type": "qwen3_vl", "text_config": {"max_position_embeddings": 9_000}}, None, 9_000),
        # RoBERTa's positions begin behind the pad's.
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, None, 512),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, None, 512),
    ],
)
def test_no_text_is_refused_early_that_the_models_would_take(
    config: dict[str, Any], max_context: int | None, most: int
) -> None:
    assert most_context(config, max_context) == most
