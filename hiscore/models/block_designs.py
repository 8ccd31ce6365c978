"""Rows of the table of families (`models/families.py`) with other blocks than Llama's.

Llama normalises the input of attention and that of the MLP, and has one after the other.
"""

from typing import Any

from hiscore.models.family import ATTENTION_BIASES, POST_NORMS, SANDWICH_NORMS, BlockNorms, DecoderFamily
from hiscore.models.rules import key_rule, one_of, unset

GEMMA: dict[str, Any] = {
    "norm_plus_one": True,
    "norms": SANDWICH_NORMS,
    "scaled_embedding": True,
    **ATTENTION_BIASES,
    "windowed": "by layer type",
    "activation_key": "hidden_activation",
    "attention_scale_key": "query_pre_attn_scalar",
    "logit_soft_cap_key": "final_logit_softcapping",
}

OLMO: dict[str, Any] = {
    "norms": POST_NORMS,
    "qk_norm": True,
    "qk_norm_of_all_heads": True,
    **ATTENTION_BIASES,
}
GLM: dict[str, Any] = {
    "qkv_bias": "attention_bias",
    "gate_up_names": ("gate_up_proj",),
    "interleaved_rope": True,
    "partial_rope": True,
}
COHERE: dict[str, Any] = {
    "norms": BlockNorms(),
    "layer_norms": True,
    "parallel_mlp": True,
    "interleaved_rope": True,
    **ATTENTION_BIASES,
    "logit_scale_key": "logit_scale",
    "norm_eps_key": "layer_norm_eps",
}

SOME_ATTEND = key_rule(
    "layer_types",
    lambda kinds: kinds is None or "full_attention" in kinds,
    "no layer of layer_types is full_attention",
)
HYBRID: dict[str, Any] = {
    "norm_plus_one": True,
    "qk_norm": True,
    **ATTENTION_BIASES,
    "partial_rope": True,
    "recurrent": True,
    "output_gate": True,
    "own_rules": (
        # Convolutions have the MLP's activation.
        key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
        SOME_ATTEND,
    ),
}
"""Three gated delta nets to one layer of attention."""

OTHER_BLOCKS = (
    DecoderFamily(
        name="gemma2", known_as="Gemma 2", attention_soft_cap_key="attn_logit_softcapping", **GEMMA
    ),
    DecoderFamily(
        name="gemma3_text",
        known_as="Gemma 3 270M and 1B",
        qk_norm=True,
        ropes_by_layer_type=True,
        both_ways_key="use_bidirectional_attention",
        own_rules=(
            key_rule(
                "attn_logit_softcapping",
                unset,
                "it caps attention logits, which transformers' Gemma 3 does not compute",
            ),
        ),
        **GEMMA,
    ),
    DecoderFamily(name="olmo2", known_as="OLMo 2", **OLMO),
    DecoderFamily(
        name="olmo3", known_as="OLMo 3", windowed="by layer type", ropes_by_layer_type=True, **OLMO
    ),
    DecoderFamily(name="glm", known_as="GLM-4 9B (glm-4-9b-hf), GLM-Edge", **GLM),
    DecoderFamily(
        name="glm4",
        known_as="GLM-4-0414, GLM-Z1",
        norms=BlockNorms(
            post_attention="post_self_attn_layernorm",
            mlp="post_attention_layernorm",
            post_mlp="post_mlp_layernorm",
        ),
        **GLM,
    ),
    DecoderFamily(
        name="cohere",
        known_as="Command R, Command R+, Aya 23, Aya Expanse",
        qk_norm="use_qk_norm",
        qk_norm_by_head=True,
        **COHERE,
    ),
    DecoderFamily(
        name="cohere2",
        known_as="Command R7B, Command A",
        windowed="by layer type",
        unrotated="full_attention",
        own_rules=(key_rule("sliding_window", bool, "sliding_window is {value}, and then no layer rotates"),),
        **COHERE,
    ),
    DecoderFamily(
        name="exaone4",
        known_as="EXAONE 4",
        norms=POST_NORMS,
        qk_norm=True,
        windowed="by layer type",
        unrotated="full_attention",
    ),
    DecoderFamily(name="qwen3_5_text", known_as="Qwen 3.5 without experts; decoded on a CPU", **HYBRID),
    DecoderFamily(
        name="lfm2",
        known_as="LFM2; computed on a CPU",
        qk_norm=True,
        recurrent=True,
        convolved=True,
        activation_key="",
        norm_eps_key="norm_eps",
        own_rules=(
            key_rule("conv_bias", one_of(None, False), "conv_bias is {value}, and no bias is computed"),
            key_rule(
                "conv_L_cache",
                lambda taps: taps is None or taps > 1,
                "conv_L_cache is {value}: a convolution needs a token before",
            ),
            SOME_ATTEND,
        ),
    ),
)
