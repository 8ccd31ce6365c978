"""The families of checkpoints that are served, and everything in which they differ.

A family is a `model_type` of transformers. To add one:

1. If the decoder computes it with the switches below, add an entry to `DECODER_FAMILIES` (attention over keys and
   values) or to `DSA_FAMILIES` (latent attention with a lightning indexer). A new switch is a new field whose
   default changes nothing; `models/config.py` copies it into `Architecture`, and the loader or a layer acts on it.
2. Go through the family's `configuration_*.py` and `modeling_*.py` in transformers. For every key that changes the
   computation and is not implemented for all of its values, add a rule: what is not refused here is computed, and
   would silently be computed wrongly.
3. Add a random checkpoint to `tests/support/tiny_models.py` (or `tiny_dsa.py`): tests compare every family there
   with transformers' own model.

Nothing here imports torch: the launcher reads this table before anything heavy is loaded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hiscore.settings import Selector

CAUSAL_LM = "ForCausalLM"
CLASSIFIER = "ForSequenceClassification"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
"""Every family's default is one of these."""

Config = Mapping[str, Any]
Rule = Callable[[Config], str | None]
"""Looks at a config.json; returns why it cannot be computed, or None."""


def key_rule(name: str, implemented: Callable[[Any], bool], reason: str) -> Rule:
    """A rule about one key of config.json.

    Args:
        name: The key. Where it is missing the family's default holds, which must be implemented.
        implemented: Whether a value of the key is computed.
        reason: Message for any other value, which replaces `{value}`.
    """

    def rule(config: Config) -> str | None:
        if name not in config or implemented(config[name]):
            return None
        return reason.format(value=config[name])

    return rule


def one_of(*values: object) -> Callable[[Any], bool]:
    """For `key_rule`: the value is one of `values`."""
    return lambda value: value in values


def unset(value: object) -> bool:
    """For `key_rule`: the value is null, false, zero or empty."""
    return not value


def model_class_rule(*suffixes: str, reason: str) -> Rule:
    """The model class must end in one of `suffixes`."""

    def rule(config: Config) -> str | None:
        architecture = (config.get("architectures") or ["none"])[0]
        return None if architecture.endswith(suffixes) else f"architecture '{architecture}' {reason}"

    return rule


def rope_type_rule(*implemented: str) -> Rule:
    """All rope types of a config, which may have one for each kind of layer, must be `implemented`."""

    def rule(config: Config) -> str | None:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        variants = [value for value in rope.values() if isinstance(value, dict)] or [rope]
        present = {str(variant.get("rope_type", variant.get("type", "default"))) for variant in variants}
        for rope_type in sorted(present - set(implemented)):
            return f"rope type '{rope_type}' is none of {', '.join(implemented)}"
        return None

    return rule


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """Attention over keys and values: one forward (`models/decoder.py`), for scoring and decoding."""

    name: str
    norm_plus_one: bool = False
    """RMSNorm weights are stored less one."""
    sandwich_norms: bool = False
    """The output of attention and of the MLP is normalised too."""
    qk_norm: bool = False
    qkv_bias: bool = False
    """Always; otherwise as the config's attention_bias says."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the root of the hidden size."""
    windowed: bool = False
    """Without layer_types, every layer has the config's sliding_window."""
    activation_key: str = "hidden_act"
    attention_scale_key: str | None = None
    """Holds what attention's scale is the inverse root of; None: the head dimension."""
    attention_soft_cap_key: str | None = None
    logit_soft_cap_key: str | None = None
    """Of a causal LM's logits; no family caps a classifier's."""
    own_rules: tuple[Rule, ...] = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """What SELECTOR may be, the default first."""
        return "quest", "exact", "dense"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What a config must satisfy; the first rule that it breaks is reported."""
        return (
            model_class_rule(
                CAUSAL_LM, CLASSIFIER, reason="is neither a causal LM nor a sequence classifier"
            ),
            key_rule(
                "quantization_config",
                unset,
                "its weights are quantised; float32, float16 and bfloat16 ones are served",
            ),
            key_rule(
                self.activation_key,
                one_of(None, "", "default", *ACTIVATIONS),
                f"activation '{{value}}' is none of {', '.join(ACTIVATIONS)}",
            ),
            key_rule("use_bidirectional_attention", unset, "it attends in both directions"),
            *self.own_rules,
            # Other types change frequencies with the length of the sequence, and so with what shares the batch.
            rope_type_rule("default", "linear", "llama3", "yarn"),
        )


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


def _quantised_to(config: Config) -> str | None:
    if not (quantised := config.get("quantization_config")):
        return None
    method = quantised.get("quant_method", "unknown")
    return f"its weights are quantised ({method}); convert them to bfloat16, float16 or float32 first"


def _one_kv_head_per_head(config: Config) -> str | None:
    of_queries, of_keys = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if of_queries and of_keys and of_queries != of_keys:
        return f"num_key_value_heads {of_keys} is not num_attention_heads {of_queries}, as latent attention has it"
    return None


@dataclass(frozen=True, kw_only=True)
class DsaFamily:
    """Latent attention to what a lightning indexer selects (`models/deepseek/`): for decoding alone."""

    name: str
    interleaved_indexer: bool = False
    """The indexer's rotary pairs are neighbours instead of the two halves of a head."""

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """What SELECTOR may be, the default first: the other selectors need keys for every head."""
        return "dsa", "dense"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What a config must satisfy; the first rule that it breaks is reported."""
        return (
            model_class_rule(CAUSAL_LM, reason="is not a causal LM"),
            _quantised_to,
            key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
            key_rule(
                "q_lora_rank",
                lambda rank: rank is not None,
                "q_lora_rank is null, and the indexer reads the query's low-rank form",
            ),
            _one_kv_head_per_head,
            key_rule("scoring_func", one_of("sigmoid"), "scoring_func '{value}' is not sigmoid"),
            key_rule("topk_method", one_of("noaux_tc"), "topk_method '{value}' is not noaux_tc"),
            rope_type_rule("default", "yarn"),
        )


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
