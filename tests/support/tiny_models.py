"""Small random checkpoints of every family, for comparison with transformers.

Everything that a checkpoint holds is random, biases and norms included: one that stays at its initial 0 or 1
would hide that it is dropped.
"""

from pathlib import Path
from typing import Any

import torch
import transformers  # no class by name: ranks import this file, and would wait for models that they never use

from tests.support.checkpoints import edited_config, edited_tensors

VOCABULARY = 500
CONTEXT = 4_096
LOW_AND_HIGH = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def rope(rope_type: str, original: int | None = None, **more: Any) -> dict[str, Any]:
    """Rotary parameters, for a context that was `original` tokens."""
    trained = {"original_max_position_embeddings": original} if original else {}
    return {"rope_type": rope_type, "rope_theta": 10_000.0, **trained, **more}


YARN, LLAMA3 = rope("yarn", 1_024, factor=4.0), rope("llama3", 64, factor=8.0, **LOW_AND_HIGH)
# Queries are scaled from position 16 on.
LLAMA4 = rope("yarn", 16, factor=4.0, llama_4_scaling_beta=0.5)
SHORT_AND_LONG = {
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 7.0, 12.0],
}
LONGROPE = rope("longrope", 2_048, partial_rotary_factor=0.75, **SHORT_AND_LONG)
HALF_ROTATED = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
MROPE = rope("default", mrope_section=[2, 3, 3])
PIXTRAL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN2_VISION = {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64}
QWEN_VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
SHARED_EXPERT = {**EXPERTS, "shared_expert_intermediate_size": 40}

QWEN3_5 = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {**MROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
QWEN3_5_VISION = {**QWEN_VISION, "num_position_embeddings": 16}


GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": VOCABULARY,
    "final_logit_softcapping": 3.0,
}


def family(model_type: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    return model_type, changes


# Windows of 5 tokens: far shorter than the calls of the tests, so that a wrong one shows.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": family("llama", tie_word_embeddings=True),
    "llama-biased": family(
        "llama", attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3, tie_word_embeddings=False
    ),
    "qwen2": family("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3": family("qwen3", head_dim=32, rope_parameters=YARN, tie_word_embeddings=True),
    "mistral": family("mistral", sliding_window=5),
    "gemma2": family(
        "gemma2",
        head_dim=32,
        sliding_window=5,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": family(
        "gemma3_text", head_dim=32, sliding_window=5, sliding_window_pattern=3, query_pre_attn_scalar=24
    ),
    "qwen3-moe": family("qwen3_moe", head_dim=32, mlp_only_layers=[1], **EXPERTS, norm_topk_prob=True),
    "qwen3-moe-plain": family(
        "qwen3_moe", use_sliding_window=True, sliding_window=5, decoder_sparse_step=3, **EXPERTS
    ),
    "gpt-oss": family(
        "gpt_oss",
        head_dim=32,
        sliding_window=5,
        num_local_experts=6,
        num_experts_per_tok=3,
        rope_parameters={**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
    "mixtral": family("mixtral", sliding_window=5, num_local_experts=6, num_experts_per_tok=3),
    "gemma": family("gemma", head_dim=32, hidden_act="gelu"),
    "phi3": family("phi3", sliding_window=5, rope_parameters=LONGROPE),
    "granite": family(
        "granite",
        attention_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.3,
        attention_multiplier=0.4,
        logits_scaling=2.5,
    ),
    "smollm3": family("smollm3", no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=5),
    "olmo2": family("olmo2", attention_bias=True),
    "olmo3": family(
        "olmo3", sliding_window=5, rope_parameters={"full_attention": YARN, "sliding_attention": {}}
    ),
    "seed-oss": family("seed_oss", head_dim=32, attention_out_bias=True, mlp_bias=True),
    "ministral": family(
        "ministral", head_dim=32, sliding_window=5, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "ministral3": family("ministral3", head_dim=32, sliding_window=20, rope_parameters=LLAMA4),
    "glm-9b": family("glm", head_dim=32, rope_parameters=HALF_ROTATED),
    "glm4": family("glm4", head_dim=32, rope_parameters=HALF_ROTATED, attention_bias=False),
    "cohere": family("cohere", logit_scale=0.3, attention_bias=True),
    "command-r-plus": family("cohere", head_dim=32, logit_scale=0.3, use_qk_norm=True),
    "cohere2": family("cohere2", logit_scale=0.3, sliding_window=5),
    "exaone4": family("exaone4", sliding_window=5, rope_parameters=LLAMA3),
    "gemma3-images": family(
        "gemma3",
        text_config={"head_dim": 32, "sliding_window": 5, "sliding_window_pattern": 3},
        vision_config={**PIXTRAL, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    ),
    "gemma4": family("gemma4_text", **GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True),
    "gemma4-experts": family(
        "gemma4_text",
        **{**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
        **{"num_global_key_value_heads": 1, "attention_bias": True, "enable_moe_block": True},
        **{"num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32},
    ),
    "gemma4-images": family(
        "gemma4",
        text_config={
            **GEMMA4,
            "num_kv_shared_layers": 1,
            "use_bidirectional_attention": "vision",
            "pad_token_id": 0,
        },
        vision_config={
            **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "position_embedding_size": 8},
        },
        audio_config=None,
    ),
    "mistral3-images": family(
        "mistral3",
        text_config={"model_type": "ministral3", "head_dim": 32, "rope_parameters": LLAMA4},
        vision_config={**PIXTRAL, "image_size": 28, "patch_size": 14},
        tie_word_embeddings=False,
    ),
    "qwen2-vl": family("qwen2_vl", text_config={"rope_parameters": MROPE}, vision_config=QWEN2_VISION),
    "qwen2.5-vl": family("qwen2_5_vl", text_config={"rope_parameters": MROPE}, vision_config=QWEN_VISION),
    "qwen3-hybrid": family("qwen3_5_text", **QWEN3_5),
    "qwen3-hybrid-images": family(
        "qwen3_5", text_config=QWEN3_5, vision_config=QWEN3_5_VISION, tie_word_embeddings=True
    ),
    "qwen3-next": family(
        "qwen3_next",
        **{**QWEN3_5, "rope_parameters": HALF_ROTATED},
        **{**SHARED_EXPERT, "mlp_only_layers": [2], "norm_topk_prob": False},
    ),
    "qwen3-hybrid-moe": family("qwen3_5_moe_text", **QWEN3_5, **SHARED_EXPERT),
    "qwen3-hybrid-moe-images": family(
        "qwen3_5_moe",
        text_config={**QWEN3_5, **SHARED_EXPERT},
        vision_config=QWEN3_5_VISION,
    ),
    "lfm2": family(
        "lfm2",
        **{"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3},
        **{"block_multiple_of": 16, "block_ffn_dim_multiplier": 1.25, "tie_word_embeddings": True},
    ),
    "qwen3-vl": family(
        "qwen3_vl",
        text_config={"head_dim": 16, "rope_parameters": MROPE, "attention_bias": True},
        vision_config={**QWEN_VISION, "deepstack_visual_indexes": [0]},
        tie_word_embeddings=True,
    ),
}
BOTH_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mean": family("llama_bidirec", rope_parameters=LLAMA3, attention_bias=True, temperature=0.4),
    "llama-first": family("llama_bidirec", pooling="cls", tie_word_embeddings=True),
    "llama-last": family("llama_bidirec", pooling="last", mlp_bias=True),
    "embedding-gemma": family(
        "gemma3_text",
        **{"head_dim": 32, "sliding_window": 8, "sliding_window_pattern": 3},
        use_bidirectional_attention=True,
    ),
    **{
        f"{name}-both-ways": family(FAMILIES[name][0], **FAMILIES[name][1], is_causal=False)
        for name in (
            *("qwen3", "qwen2", "llama-biased", "mistral", "gemma", "gemma3", "qwen3-moe", "mixtral"),
            *("qwen3-moe-plain", "smollm3", "olmo2", "olmo3", "seed-oss", "ministral", "ministral3"),
            *("glm-9b", "glm4", "exaone4"),
        )
    },
}
"""Classifiers whose every token sees those behind it, too."""
IMAGES = tuple(name for name, (_, changes) in FAMILIES.items() if "text_config" in changes)
"""Whose checkpoints also have a tower that reads images."""
RECURRENT = tuple(name for name in FAMILIES if name.startswith(("qwen3-hybrid", "qwen3-next", "lfm2")))
"""Most of whose layers are gated delta nets, or convolutions."""
ON_GPU = tuple(name for name in FAMILIES if not name.startswith(("gemma4", "lfm2")))
DECODED = tuple(name for name in FAMILIES if not name.startswith("gemma4"))
ATTENDING = tuple(name for name in DECODED if name not in RECURRENT)
LIKE_OTHERS = (
    *("gemma", "phi3", "granite", "smollm3", "olmo2", "olmo3", "seed-oss", "ministral", "ministral3"),
    *("glm-9b", "glm4", "cohere", "command-r-plus", "cohere2", "exaone4", *IMAGES),
    *("qwen3-next", "qwen3-hybrid-moe", "gemma4-experts"),
)
"""Compared with transformers once each. They differ from the others in a layer's arithmetic alone, so that what
concerns batches, caches and calls is not repeated for them."""
FIRST = tuple(name for name in FAMILIES if name not in LIKE_OTHERS)
WITHOUT_CLASSIFIER = (
    *("granite", "cohere", "command-r-plus", "cohere2"),
    *("mistral3-images", "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-hybrid-moe", "qwen3-hybrid-moe-images"),
    *("gemma4", "gemma4-experts", "gemma4-images", "lfm2"),
)
"""Transformers has no sequence classifiers of these."""
REWARD_HEAD = ("score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias")


GUARD = {"guard_inner_size": 32, "num_risk_level": 3, "num_category": 8}
GUARD |= {"num_query_risk_level": 3, "num_query_category": 9}


def make_guard(directory: Path) -> Path:
    """Write a random checkpoint as Qwen publishes Qwen3Guard-Stream."""
    make("qwen3", directory)
    with edited_config(directory) as config:
        config |= GUARD | {"architectures": ["Qwen3ForGuardModel"]}
    hidden, inner = config["hidden_size"], GUARD["guard_inner_size"]
    with edited_tensors(directory) as tensors:
        for of in ("", "query_"):
            tensors[f"{of}risk_level_category_pre.weight"] = 0.3 * torch.randn(inner, hidden)
            tensors[f"{of}risk_level_category_layernorm.weight"] = 1 + 0.3 * torch.randn(inner)
            for kind in ("risk_level", "category"):
                tensors[f"{of}{kind}_head.weight"] = 0.3 * torch.randn(GUARD[f"num_{of}{kind}"], inner)
    return directory


def make_reward_model(name: str, directory: Path, kind: str, labels: int) -> Path:
    """Write a random checkpoint as Qwen publishes reward models: a class of its own, a head of two layers."""
    make(name, directory)
    with edited_config(directory) as config:
        config["architectures"] = [config["architectures"][0].replace("ForCausalLM", kind)]
    hidden = config["hidden_size"]
    shapes = (hidden, hidden), (hidden,), (labels, hidden), (labels,)
    with edited_tensors(directory) as tensors:
        tensors.pop("lm_head.weight", None)
        tensors |= {name_: 0.3 * torch.randn(shape) for name_, shape in zip(REWARD_HEAD, shapes, strict=True)}
    return directory


def make(
    name: str, directory: Path, labels: int | None = None, seed: int = 0, of: str = "SequenceClassification"
) -> Path:
    """Write a random checkpoint of a family; with `labels`, a classifier `of` texts with that many labels."""
    model_type, changes = (FAMILIES | BOTH_WAYS)[name]
    if model_type == "llama_bidirec":
        from tests.support import published_bidirectional  # noqa: F401
    if "text_config" in changes:
        config = transformers.AutoConfig.for_model(
            model_type, **{**changes, "text_config": {**SIZES, **changes["text_config"]}}
        )
    else:
        config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(seed)
    if labels is None:
        causal: Any = (
            transformers.AutoModelForImageTextToText if name in IMAGES else transformers.AutoModelForCausalLM
        )
        model = causal.from_config(config, dtype=torch.float32)
    else:
        config.num_labels = labels
        kind = getattr(transformers, f"AutoModelFor{of}")
        model = kind.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            # Wide enough that scores differ from item to item by far more than any tolerance.
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            plus_one = model_type.startswith("gemma") and not model_type.startswith("gemma4")
            centre = 1.0 if name_.endswith("norm.weight") and not plus_one else 0.0
            parameter.normal_(centre, spread)
        for name_, buffer in model.named_buffers():
            if name_.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    if name in RECURRENT:
        # Published checkpoints hold a layer that predicts further tokens.
        with edited_tensors(directory) as tensors:
            tensors["mtp.fc.weight"] = torch.ones(64, 128)
    return directory
