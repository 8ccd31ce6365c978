"""The families of checkpoints that are served, and everything in which they differ.

A family is a `model_type` of transformers. To add one:

1. If the decoder computes it with the switches of its kind (`models/family.py`), add an entry to
   `DECODER_FAMILIES` (attention over keys and values) or to `DSA_FAMILIES` (latent attention with a lightning
   indexer). A new switch is a new field whose default changes nothing; `models/config.py` copies it into
   `Architecture`, and the loader or a layer acts on it.
2. Go through the family's `configuration_*.py` and `modeling_*.py` in transformers. For every key that changes the
   computation and is not implemented for all of its values, add a rule: what is not refused here is computed, and
   would silently be computed wrongly.
3. Add a random checkpoint to `tests/support/tiny_models.py` (or `tiny_dsa.py`): tests compare every family there
   with transformers' own model.

Nothing here imports torch: the launcher reads this table before anything heavy is loaded.
"""

from typing import Any

from hiscore.models.family import DecoderFamily, DsaFamily, ExpertNames
from hiscore.models.rules import Config, key_rule, unset

GEMMA: dict[str, Any] = {
    "norm_plus_one": True,
    "sandwich_norms": True,
    "scaled_embedding": True,
    "qkv_bias": "attention_bias",
    "output_bias": "attention_bias",
    "windowed": "by layer type",
    "activation_key": "hidden_activation",
    "attention_scale_key": "query_pre_attn_scalar",
    "logit_soft_cap_key": "final_logit_softcapping",
}

DECODER_FAMILIES: dict[str, DecoderFamily] = {
    family.name: family
    for family in (
        DecoderFamily(
            name="llama",
            known_as="Llama 2 and 3, SmolLM2, TinyLlama, Yi",
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            mlp_bias="mlp_bias",
        ),
        DecoderFamily(name="qwen2", known_as="Qwen 1.5, 2 and 2.5", qkv_bias=True, windowed="by layer type"),
        DecoderFamily(
            name="qwen3",
            known_as="Qwen 3, Qwen3-Reranker",
            qk_norm=True,
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            windowed="by layer type",
        ),
        DecoderFamily(name="mistral", known_as="Mistral 7B, Mistral Nemo", windowed="always"),
        DecoderFamily(
            name="gemma2", known_as="Gemma 2", attention_soft_cap_key="attn_logit_softcapping", **GEMMA
        ),
        DecoderFamily(
            name="gemma3_text",
            known_as="Gemma 3 270M and 1B",
            qk_norm=True,
            ropes_by_layer_type=True,
            own_rules=(
                key_rule(
                    "attn_logit_softcapping",
                    unset,
                    "it caps attention logits, which transformers' Gemma 3 does not compute",
                ),
            ),
            **GEMMA,
        ),
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
    )
}

DSA_FAMILIES: dict[str, DsaFamily] = {
    family.name: family
    for family in (
        DsaFamily(name="deepseek_v32", known_as="DeepSeek-V3.2"),
        DsaFamily(name="glm_moe_dsa", known_as="GLM-5", interleaved_indexer=True),
    )
}


def family_of(config: Config) -> DecoderFamily | DsaFamily | None:
    """The family of a config.json, None if it is not served."""
    name = config.get("model_type")
    return DECODER_FAMILIES.get(str(name)) or DSA_FAMILIES.get(str(name))
