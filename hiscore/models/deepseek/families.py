"""Which checkpoints with a lightning indexer can be computed; pure, from config.json alone."""

from typing import Any

# transformers' model_type of the families computed here.
FAMILIES = ("deepseek_v32", "glm_moe_dsa")
ROPE_TYPES = ("default", "yarn")


def unsupported(config: dict[str, Any]) -> str | None:
    """Why the decoder cannot compute a checkpoint with this config.json, or None if it can."""
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"model_type '{family}' is none of {', '.join(FAMILIES)}"
    architecture = (config.get("architectures") or ["none"])[0]
    if not architecture.endswith("ForCausalLM"):
        return f"architecture '{architecture}' is no causal LM"
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "unknown")
        return f"its weights are quantised ({method}); convert them to bfloat16, float16 or float32 first"
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        return f"activation '{activation}' is not silu"
    if config.get("q_lora_rank", 1) is None:
        return "q_lora_rank is null, and the indexer reads the query's low-rank form"
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads != kv_heads:
        return (
            f"num_key_value_heads {kv_heads} is not num_attention_heads {heads}, as latent attention has it"
        )
    for name, computed in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if config.get(name, computed) != computed:
            return f"{name} '{config[name]}' is not {computed}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        return f"rope type '{rope_type}' is none of {', '.join(ROPE_TYPES)}"
    return None
