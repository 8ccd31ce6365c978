"""Small random checkpoints of every family, for comparison with transformers.

Everything that a checkpoint holds is random, biases and norms included: one that stays at its initial 0 or 1
would hide that it is dropped.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

VOCABULARY = 500
CONTEXT = 4_096
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
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 1_024}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}

# Windows of 5 tokens: far shorter than the calls of the tests, so that a wrong one shows.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama-biased": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3, "tie_word_embeddings": False},
    ),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 32, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 32,
            "sliding_window": 5,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 5, "sliding_window_pattern": 3, "query_pre_attn_scalar": 24},
    ),
    "qwen3-moe": (
        "qwen3_moe",
        {"head_dim": 32, "mlp_only_layers": [1], **EXPERTS, "norm_topk_prob": True},
    ),
    "qwen3-moe-plain": (
        "qwen3_moe",
        {"use_sliding_window": True, "sliding_window": 5, "decoder_sparse_step": 3, **EXPERTS},
    ),
    "mixtral": (
        "mixtral",
        {"sliding_window": 5, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
}


def make(name: str, directory: Path, labels: int | None = None, seed: int = 0) -> Path:
    """Write a random checkpoint of a family; with `labels`, a classifier with that many labels."""
    model_type, changes = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(seed)
    if labels is None:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        config.num_labels = labels
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            # Wide enough that scores differ from item to item by far more than any tolerance.
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            centre = 1.0 if name_.endswith("norm.weight") and not model_type.startswith("gemma") else 0.0
            parameter.normal_(centre, spread)
    model.save_pretrained(directory)
    return directory
