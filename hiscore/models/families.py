"""The families of checkpoints that are served, and everything in which they differ.

A family is a `model_type` of transformers. To add one:

1. If the decoder computes it with the switches of its kind (`models/family.py`), add an entry to
   `DECODER_FAMILIES` (attention over keys and values; `models/block_designs.py` holds those whose blocks are not
   those of Llama, `models/expert_families.py` those with a mixture of experts) or to `DSA_FAMILIES` (latent
   attention with a lightning indexer). A new switch is a new field whose default changes nothing;
   `models/config.py` copies it into `Architecture`, and the loader or a layer acts on it.
2. Go through the family's `configuration_*.py` and `modeling_*.py` in transformers. For every key that changes the
   computation and is not implemented for all of its values, add a rule: what is not refused here is computed, and
   would silently be computed wrongly.
3. Name its classes in `models/model_classes.py`.
4. Add a random checkpoint to `tests/support/tiny_models.py` (or `tiny_dsa.py`): tests compare every family there
   with transformers' own model.

Nothing here imports torch: the launcher reads this table before anything heavy is loaded.
"""

from collections.abc import Mapping
from typing import Literal

from hiscore.models.block_designs import OTHER_BLOCKS
from hiscore.models.encoder_families import ENCODER_FAMILIES, EncoderFamily
from hiscore.models.expert_families import WITH_EXPERTS
from hiscore.models.family import (
    ALL_BIASES,
    ATTENTION_BIASES,
    ROPE_TYPES,
    DecoderFamily,
    DsaFamily,
    is_classifier,
)
from hiscore.models.rules import CAUSAL_RULE, UNIDIRECTIONAL_RULE, Config, key_rule, one_of
from hiscore.models.text_towers import TEXT_TOWERS, text_config

POOLINGS: dict[str, Literal["first", "last", "mean"]] = {"avg": "mean", "cls": "first", "last": "last"}
"""Values of a pooling_key, and the tokens that the head reads."""
MODULAR_POOLINGS: dict[str, Literal["first", "last", "mean"]] = {
    "first": "first",
    "last": "last",
    "all": "mean",
}
"""Tokens that a head of modules reads (`stored_config`), and the pooling that reads the same."""
DECODER_FAMILIES: dict[str, DecoderFamily] = {
    family.name: family
    for family in (
        DecoderFamily(name="llama", known_as="Llama 2 and 3, SmolLM2, TinyLlama, Yi", **ALL_BIASES),
        DecoderFamily(
            name="llama_bidirec",
            known_as="llama-nemotron-rerank-1b-v2, rerankers that NeMo made of a Llama",
            **ALL_BIASES,
            logit_divisor_key="temperature",
            pooling_key="pooling",
            own_rules=(
                key_rule(
                    "pooling", one_of(*POOLINGS), f"pooling '{{value}}' is none of {', '.join(POOLINGS)}"
                ),
                key_rule("temperature", lambda divisor: divisor > 0, "temperature {value} is not positive"),
            ),
        ),
        DecoderFamily(name="qwen2", known_as="Qwen 1.5, 2 and 2.5", qkv_bias=True, windowed="by layer type"),
        DecoderFamily(
            name="qwen3",
            known_as="Qwen 3, Qwen3-Reranker, jina-reranker-v3",
            qk_norm=True,
            **ATTENTION_BIASES,
            windowed="by layer type",
        ),
        DecoderFamily(name="mistral", known_as="Mistral 7B, Mistral Nemo", windowed="always"),
        DecoderFamily(
            name="gemma",
            known_as="Gemma 1, bge-reranker-v2-gemma",
            norm_plus_one=True,
            scaled_embedding=True,
            **ATTENTION_BIASES,
        ),
        DecoderFamily(
            name="phi3",
            known_as="Phi-3, Phi-4; with longrope (128k, Phi-4-mini) `decode` ends at the original 4,096 tokens",
            qkv_names=("qkv_proj",),
            gate_up_names=("gate_up_proj",),
            partial_rope=True,
            windowed="always",
            # The older names of longrope.
            rope_types=("default", "longrope", "su", "yarn"),
        ),
        DecoderFamily(
            name="granite",
            known_as="Granite 3 and 3.3 dense",
            **ALL_BIASES,
            embedding_scale_key="embedding_multiplier",
            residual_scale_key="residual_multiplier",
            attention_multiplier_key="attention_multiplier",
            logit_divisor_key="logits_scaling",
            own_rules=(
                key_rule(
                    "residual_multiplier",
                    lambda factor: factor > 0,
                    "residual_multiplier {value} is not positive",
                ),
            ),
        ),
        DecoderFamily(
            name="smollm3",
            known_as="SmolLM3",
            **ALL_BIASES,
            windowed="by layer type",
            unrotated="no_rope_layers",
        ),
        DecoderFamily(
            name="seed_oss",
            known_as="Seed-OSS",
            qkv_bias="attention_bias",
            output_bias="attention_out_bias",
            mlp_bias="mlp_bias",
        ),
        DecoderFamily(name="ministral", known_as="Ministral 8B", windowed="by layer type"),
        DecoderFamily(name="ministral3", known_as="Ministral 3", windowed="always", scaled_queries=True),
        *(
            DecoderFamily(
                name=f"{name}_text",
                known_as=f"text of {known_as}",
                qkv_bias=True,
                windowed="by layer type",
                rope_types=(*ROPE_TYPES, "mrope"),
            )
            for name, known_as in (("qwen2_vl", "Qwen2-VL"), ("qwen2_5_vl", "Qwen2.5-VL"))
        ),
        DecoderFamily(
            name="qwen3_vl_text",
            known_as="text of Qwen3-VL, Qwen3-VL-Reranker",
            qk_norm=True,
            **ATTENTION_BIASES,
        ),
        *OTHER_BLOCKS,
        *WITH_EXPERTS,
    )
}

DSA_FAMILIES: dict[str, DsaFamily] = {
    family.name: family
    for family in (
        DsaFamily(name="deepseek_v3", known_as="DeepSeek-V3, DeepSeek-R1", indexed=False),
        DsaFamily(name="deepseek_v32", known_as="DeepSeek-V3.2"),
        DsaFamily(name="glm_moe_dsa", known_as="GLM-5", interleaved_indexer=True),
    )
}


def attends_both_ways(config: Config) -> bool:
    """True for a config.json (`stored_config`) of a classifier whose decoder attends in both directions."""
    family = family_of(config)
    if not isinstance(family, DecoderFamily) or not is_classifier(config.get("architectures")):
        return False
    return bool(family.pooling_key or CAUSAL_RULE(config) or UNIDIRECTIONAL_RULE(config))


def is_read_whole(config: Config) -> bool:
    """True for one whose decoder computes every item with the query: it attends both ways, or its head pools."""
    of_decoder = isinstance(family_of(config), DecoderFamily)
    return attends_both_ways(config) or (of_decoder and config.get("modular") in ("first", "all"))


def family_of(config: Config) -> DecoderFamily | DsaFamily | EncoderFamily | None:
    """The family of a config.json, None if it is not served."""
    towers, name = TEXT_TOWERS.get(str(config.get("model_type"))), text_config(config).get("model_type")
    if towers is not None and name not in towers:
        return None
    if towers is None and name == "mistral" and "layer_types" in config:
        name = "ministral"  # as transformers' AutoConfig does
    kind: Mapping[str, DecoderFamily | DsaFamily | EncoderFamily]
    for kind in (DECODER_FAMILIES, DSA_FAMILIES, ENCODER_FAMILIES):
        if str(name) in kind:
            return kind[str(name)]
    return None
