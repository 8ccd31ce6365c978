"""Rows of the table of families (`models/families.py`) whose MLPs are mixtures of experts."""

from hiscore.models.block_designs import HYBRID
from hiscore.models.family import ATTENTION_BIASES, ROPE_TYPES, SANDWICH_NORMS, DecoderFamily, ExpertNames
from hiscore.models.rules import Config, key_rule, one_of

SPARSE_STEP = key_rule(
    "decoder_sparse_step",
    lambda step: isinstance(step, int) and step > 0,
    "decoder_sparse_step is {value}, not a number of layers",
)


def _heads_alone(config: Config) -> str | None:
    """A rule: layers differ in their heads alone."""
    keys = {key for layer in (config.get("per_layer_config") or {}).values() for key in layer}
    others = keys - {"head_dim", "num_key_value_heads"}
    return f"its layers differ in {min(others)} (per_layer_config)" if others else None


def _own_vocabulary(config: Config) -> str | None:
    """A rule: every token has inputs of every layer's own."""
    tokens, own = config.get("vocab_size", 262_144), config.get("vocab_size_per_layer_input", 262_144)
    if own < tokens and config.get("hidden_size_per_layer_input", 256):
        return f"vocab_size_per_layer_input is {own}, of {tokens} tokens"
    return None


WITH_EXPERTS = (
    DecoderFamily(
        name="qwen3_moe",
        known_as="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
        qk_norm=True,
        **ATTENTION_BIASES,
        windowed="always",
        experts=ExpertNames(normalise="norm_topk_prob", dense_layers=True),
        own_rules=(SPARSE_STEP,),
    ),
    DecoderFamily(
        name="qwen3_next",
        known_as="Qwen3-Next-80B-A3B; decoded on a CPU",
        experts=ExpertNames(normalise="norm_topk_prob", dense_layers=True, shared=True),
        **{**HYBRID, "own_rules": (SPARSE_STEP, *HYBRID["own_rules"])},
    ),
    DecoderFamily(
        name="qwen3_5_moe_text",
        known_as="Qwen3.5-35B-A3B, Qwen3.5-397B-A17B; decoded on a CPU",
        experts=ExpertNames(shared=True),
        **HYBRID,
    ),
    DecoderFamily(
        name="gemma4_text",
        known_as="Gemma 4; scored on a CPU",
        norms=SANDWICH_NORMS,
        scaled_embedding=True,
        **ATTENTION_BIASES,
        qk_norm=True,
        windowed="by layer type",
        ropes_by_layer_type=True,
        partial_rope=True,
        activation_key="hidden_activation",
        logit_soft_cap_key="final_logit_softcapping",
        sizes_by_layer=True,
        experts=ExpertNames(per_token_key="top_k_experts", enabled_key="enable_moe_block"),
        rope_types=(*ROPE_TYPES, "proportional"),
        own_rules=(_heads_alone, _own_vocabulary),
    ),
    DecoderFamily(
        name="mixtral",
        known_as="Mixtral 8x7B and 8x22B",
        windowed="always",
        experts=ExpertNames(
            count_key="num_local_experts",
            width_key="intermediate_size",
            block="block_sparse_moe",
            parts=("w1", "w3", "w2"),
        ),
    ),
    DecoderFamily(
        name="gpt_oss",
        known_as="GPT-OSS 20B and 120B",
        **ATTENTION_BIASES,
        windowed="by layer type",
        sinks=True,
        experts=ExpertNames(
            count_key="num_local_experts",
            width_key="intermediate_size",
            router="router",
            activation="clamped_swiglu",
            interleaved=True,
        ),
        own_rules=(
            key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
            key_rule("swiglu_limit", one_of(7.0), "swiglu_limit is {value}, not 7"),
            key_rule("swiglu_alpha", one_of(1.702), "swiglu_alpha is {value}, not 1.702"),
        ),
    ),
)
