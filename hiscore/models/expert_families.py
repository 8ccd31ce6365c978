"""Rows of the table of families (`models/families.py`) whose MLPs are mixtures of experts."""

from hiscore.models.family import DecoderFamily, ExpertNames
from hiscore.models.rules import key_rule, one_of

WITH_EXPERTS = (
    DecoderFamily(
        name="qwen3_moe",
        known_as="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
        qk_norm=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windowed="always",
        experts=ExpertNames(
            count_key="num_experts",
            width_key="moe_intermediate_size",
            normalise="norm_topk_prob",
            dense_layers=True,
        ),
        own_rules=(
            key_rule(
                "decoder_sparse_step",
                lambda step: isinstance(step, int) and step > 0,
                "decoder_sparse_step is {value}, not a number of layers",
            ),
        ),
    ),
    DecoderFamily(
        name="mixtral",
        known_as="Mixtral 8x7B and 8x22B",
        windowed="always",
        experts=ExpertNames(
            count_key="num_local_experts",
            width_key="intermediate_size",
            normalise=True,
            block="block_sparse_moe",
            parts=("w1", "w3", "w2"),
        ),
    ),
    DecoderFamily(
        name="gpt_oss",
        known_as="GPT-OSS 20B and 120B",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windowed="by layer type",
        sinks=True,
        experts=ExpertNames(
            count_key="num_local_experts",
            width_key="intermediate_size",
            normalise=True,
            router="router",
            activation="clamped_swiglu",
            interleaved=True,
        ),
        own_rules=(
            key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
            key_rule(
                "swiglu_limit", one_of(7.0), "swiglu_limit is {value}, and transformers computes with 7"
            ),
        ),
    ),
)
