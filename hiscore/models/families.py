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

from hiscore.models.family import DecoderFamily, DsaFamily
from hiscore.models.rules import Config, key_rule, unset

GEMMA: dict[str, Any] = {
    "norm_plus_one": True,
    "sandwich_norms": True,
    "scaled_embedding": True,
    "activation_key": "hidden_activation",
    "attention_scale_key": "query_pre_attn_scalar",
    "logit_soft_cap_key": "final_logit_softcapping",
}

DECODER_FAMILIES: dict[str, DecoderFamily] = {
    family.name: family
    for family in (
        DecoderFamily(name="llama"),
        DecoderFamily(name="qwen2", qkv_bias=True),
        DecoderFamily(name="qwen3", qk_norm=True),
        DecoderFamily(name="mistral", windowed=True),
        DecoderFamily(name="gemma2", attention_soft_cap_key="attn_logit_softcapping", **GEMMA),
        DecoderFamily(
            name="gemma3_text",
            qk_norm=True,
            own_rules=(
                key_rule(
                    "attn_logit_softcapping",
                    unset,
                    "it caps attention logits, which transformers' Gemma 3 does not compute",
                ),
            ),
            **GEMMA,
        ),
    )
}

DSA_FAMILIES: dict[str, DsaFamily] = {
    family.name: family
    for family in (
        DsaFamily(name="deepseek_v32"),
        DsaFamily(name="glm_moe_dsa", interleaved_indexer=True),
    )
}


def family_of(config: Config) -> DecoderFamily | DsaFamily | None:
    """The family of a config.json, None if it is not served."""
    name = config.get("model_type")
    return DECODER_FAMILIES.get(str(name)) or DSA_FAMILIES.get(str(name))
