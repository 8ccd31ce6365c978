"""Encoders: the families that are served, and the rules that their configs must satisfy.

To add one: see `hiscore.models.families`. `models/encoders/encoder.py` has the names of their tensors. Nothing of
this file imports torch: the launcher reads the table before anything heavy is loaded.
"""

from dataclasses import dataclass
from typing import Any

from hiscore.models.rules import Config, Rule, key_rule, one_of, rope_type_rule, unset, whole_heads_rotated
from hiscore.settings import Selector

ENCODER_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def activation_rule(key: str) -> Rule:
    return key_rule(
        key, one_of(*ENCODER_ACTIVATIONS), f"{key} '{{value}}' is none of {', '.join(ENCODER_ACTIVATIONS)}"
    )


def whole_heads(size_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> Rule:
    def rule(config: Config) -> str | None:
        size, heads, head_dim = config.get(size_key, 0), config.get(heads_key, 1), config.get("head_dim")
        if size % heads:
            return f"{size_key} {size} is not a multiple of {heads_key} {heads}"
        if head_dim is not None and size and head_dim * heads != size:
            return f"head_dim {head_dim} of {heads} heads is not {size_key} {size}"
        return None

    return rule


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """Attention in both directions over a pair of query and item (`models/encoders/`): for scoring alone."""

    name: str
    known_as: str
    """Checkpoints that people know, for docs/models.md."""
    positions_follow_pad: bool = False
    """Positions are counted from pad_token_id + 1, and tokens that are the pad are not counted."""
    positions: tuple[str | None, ...] = (None, "absolute")
    """Values of position_embedding_type that are computed."""
    rope_types: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    own_rules: tuple[Rule, ...] = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """None: encoders are not decoded."""
        return ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            key_rule(
                "quantization_config",
                unset,
                "its weights are quantised; encoders are served in float32, float16 and bfloat16",
            ),
            activation_rule("hidden_act"),
            key_rule("is_decoder", unset, "is_decoder is set: it attends to earlier tokens alone"),
            key_rule("add_cross_attention", unset, "it attends to the output of another encoder"),
            key_rule(
                "position_embedding_type",
                one_of(*self.positions),
                f"position_embedding_type '{{value}}' is not {self.positions[-1]}",
            ),
            whole_heads(),
            *self.own_rules,
            rope_type_rule(*self.rope_types),
            whole_heads_rotated,
        )

    def context_length(self, config: Any) -> int:
        positions: int = config.max_position_embeddings
        return positions - config.pad_token_id - 1 if self.positions_follow_pad else positions


def _embeds_at_full_size(config: Config) -> str | None:
    size, hidden = config.get("embedding_size", 128), config.get("hidden_size", 256)
    return f"embedding_size {size} is not hidden_size {hidden}" if size != hidden else None


def _pools_alike(config: Config) -> str | None:
    """A rule: EuroBERT's own code and transformers read the same pooling, under different keys."""
    old, new = config.get("clf_pooling"), config.get("classifier_pooling", "late")
    return (
        f"clf_pooling is '{old}', classifier_pooling '{new}': set both alike"
        if old not in (None, new)
        else None
    )


def _shares_heads(config: Config) -> str | None:
    heads = config.get("num_attention_heads", 12)
    kv_heads = config.get("num_key_value_heads") or heads
    return (
        f"{heads} attention heads cannot share {kv_heads} heads of keys and values"
        if heads % kv_heads
        else None
    )


MPNET_BUCKETS = 32
ENCODER_FAMILIES: dict[str, EncoderFamily] = {
    family.name: family
    for family in (
        EncoderFamily(name="bert", known_as="ms-marco-MiniLM, BERT"),
        EncoderFamily(name="roberta", known_as="RoBERTa, stsb-roberta", positions_follow_pad=True),
        EncoderFamily(
            name="xlm-roberta",
            known_as="bge-reranker-base, -large and -v2-m3, mMARCO rerankers",
            positions_follow_pad=True,
        ),
        EncoderFamily(name="camembert", known_as="CamemBERT", positions_follow_pad=True),
        EncoderFamily(
            name="electra",
            known_as="ELECTRA base and large, ms-marco-electra",
            own_rules=(_embeds_at_full_size,),
        ),
        EncoderFamily(
            name="distilbert",
            known_as="DistilBERT, sst-2 and other classifiers",
            own_rules=(activation_rule("activation"), whole_heads("dim", "n_heads")),
        ),
        EncoderFamily(
            name="albert",
            known_as="ALBERT",
            own_rules=(key_rule("num_hidden_groups", bool, "num_hidden_groups is {value}"),),
        ),
        EncoderFamily(
            name="mpnet",
            known_as="MPNet",
            positions_follow_pad=True,
            own_rules=(
                key_rule(
                    "pad_token_id", one_of(1), "pad_token_id is {value}, and MPNet's positions follow 1"
                ),
                key_rule(
                    "relative_attention_num_buckets",
                    lambda count: count >= MPNET_BUCKETS,
                    f"relative_attention_num_buckets is {{value}}, and distances have {MPNET_BUCKETS}",
                ),
            ),
        ),
        EncoderFamily(
            name="eurobert",
            known_as="EuroBERT",
            own_rules=(
                key_rule(
                    "classifier_pooling",
                    one_of("bos", "mean", "late"),
                    "classifier_pooling '{value}' is unknown",
                ),
                _pools_alike,
                _shares_heads,
            ),
        ),
        EncoderFamily(
            name="new",
            known_as="gte-multilingual-reranker-base",
            positions=("rope",),
            # Its config expresses one by the other.
            rope_types=("default", "ntk", "linear"),
            own_rules=(
                key_rule(
                    "layer_norm_type", one_of("layer_norm"), "layer_norm_type '{value}' is not layer_norm"
                ),
                key_rule(
                    "logn_attention_scale", unset, "it scales attention by the length (logn_attention_scale)"
                ),
                key_rule("pack_qkv", bool, "pack_qkv is {value}: save it with q, k and v packed"),
            ),
        ),
        EncoderFamily(
            name="modernbert",
            known_as="ModernBERT, gte-reranker-modernbert, Ettin rerankers",
            own_rules=(activation_rule("hidden_activation"), activation_rule("classifier_activation")),
        ),
        EncoderFamily(
            name="deberta-v2",
            known_as="DeBERTa v2 and v3, mxbai-rerank v1",
            own_rules=(
                activation_rule("pooler_hidden_act"),
                key_rule("conv_kernel_size", unset, "it has a convolution behind its first layer"),
            ),
        ),
    )
}
