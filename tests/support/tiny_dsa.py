"""Small random checkpoints with a lightning indexer, and transformers' own model of them.

Eight index heads: with two, relu leaves many scores at exactly 0, and which of the equal ones transformers selects
is not defined. Everything is random, norms, biases and the router's correction included: one that stays at its
initial 0 or 1 would hide that it is dropped.
"""

from pathlib import Path
from typing import Any

import torch
import transformers  # no class by name: ranks import this file, and would wait for models that they never use

from tests.support.tiny_models import family, rope

VOCABULARY = 256
TOP_K = 16
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
    "index_topk": TOP_K,
    "index_head_dim": 32,
    "index_n_heads": 8,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
}
YARN = rope("yarn", 128, factor=4.0, mscale=1.0, mscale_all_dim=0.8)
ALL_DENSE = {"first_k_dense_replace": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek": family("deepseek_v32", rope_parameters=YARN, attention_bias=True, **ALL_DENSE),
    "glm": family("glm_moe_dsa", **ALL_DENSE),
    "glm-shared": family("glm_moe_dsa", indexer_types=["full", "shared", "shared", "full"], **ALL_DENSE),
    "glm-alternating": family(
        "glm_moe_dsa", indexer_types=["full", "shared"] * 2, tie_word_embeddings=True, **ALL_DENSE
    ),
    "deepseek-experts": family("deepseek_v32", rope_parameters=YARN),
    "glm-experts": family("glm_moe_dsa", n_group=1, topk_group=1, norm_topk_prob=False),
    "deepseek-v3-experts": family("deepseek_v3", rope_parameters=YARN, attention_bias=True),
}
INDEXED = tuple(name for name in FAMILIES if "v3" not in name)


def make(name: str, directory: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a random checkpoint of a family in float32; `changes` go into its config."""
    model_type, of_family = FAMILIES[name]
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **of_family, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            # Wide enough that a wrong row among those attended to shows.
            spread = 0.3 if parameter.ndim == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if name_.endswith("norm.weight") else 0.0, spread)
        for name_, buffer in model.named_buffers():
            if name_.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.3)
    model.save_pretrained(directory)
    return directory


def reference(checkpoint: Path, dtype: torch.dtype) -> Any:
    """transformers' model; sdpa keeps float64 throughout, as experts that are computed one by one do."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, attn_implementation="sdpa", experts_implementation="eager"
    )
    return model.eval()
