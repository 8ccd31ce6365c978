"""config.json of the models whose geometry is measured, and of tiny ones to rehearse with."""

from typing import Any

LATENT = ("deepseek_v32",)
"""Families that cache latents and select by their own indexer."""

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}

_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "torch_dtype": "bfloat16",
}

_QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

# Attention as in the real model, which has 61 layers (3 without experts), 256 experts and a larger vocabulary.
_DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 32_768,
    "hidden_size": 7_168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2_048,
    "num_hidden_layers": 6,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1_536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2_048,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
}


def _qwen3_5(hidden: int, inner: int, layers: int, heads: int, value_heads: int) -> dict[str, Any]:
    return _QWEN3_5 | {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "linear_num_value_heads": value_heads,
    }


GEOMETRIES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    # For loads whose keys and values fill a host: half of the layers, half of the bytes of a token.
    "qwen3-0.6b-half": _QWEN3
    | {
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 14,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": _QWEN3
    | {
        "hidden_size": 2_560,
        "intermediate_size": 9_728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4_096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": _QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2_048,
        "intermediate_size": 6_144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "qwen2.5-0.5b": _QWEN2
    | {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": _QWEN2
    | {
        "vocab_size": 152_064,
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "qwen3.5-0.8b": _qwen3_5(1_024, 3_584, 24, 8, 16)
    | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3.5-9b": _qwen3_5(4_096, 12_288, 32, 16, 32),
    "qwen3.5-27b": _qwen3_5(5_120, 17_408, 64, 24, 48),
    "deepseek-v3.2-cut": _DEEPSEEK,
    "tiny": _QWEN3
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "tiny-hybrid": _qwen3_5(64, 128, 4, 4, 4)
    | {"vocab_size": 512, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    | {"num_key_value_heads": 2, "linear_num_key_heads": 2},
    "tiny-dsa": _DEEPSEEK
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 64,
    },
}
