"""Sizes and switches of a checkpoint with a lightning indexer, from its config.json and the table of families.

The config is read by transformers, whose classes fill in each family's defaults. The families differ only in the
indexer: how it pairs rotary dimensions, that GLM's layers may share a selection, and that DeepSeek-V3 has none.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hiscore.layers.rope import context_length
from hiscore.layers.weights import Routing
from hiscore.models.config import ExpertShape
from hiscore.models.config_file import check_sizes, translated
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.families import DSA_FAMILIES
from hiscore.models.support import context_limit, unsupported

SIZES = (
    "vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts",
    "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size", "n_shared_experts",
)  # fmt: skip
INDEX_SIZES = "index_n_heads", "index_head_dim", "index_topk"


@dataclass(frozen=True)
class Indexer:
    """The lightning indexer: small heads that score every earlier token for a layer's attention."""

    heads: int
    head_dim: int
    top_k: int
    interleaved: bool
    """Rotary pairs are neighbouring dimensions, as in attention; otherwise one is from each half."""


@dataclass(frozen=True)
class DsaArchitecture:
    family: str
    vocab_size: int
    context_length: int
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    q_rank: int
    latent_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    attention_bias: bool
    attention_scale: float
    norm_eps: float
    indexer: Indexer
    """Without any, one that selects a whole context."""
    own_index: tuple[bool, ...]
    """True for each layer with an indexer; others use the selection of the last one before them."""
    routed: tuple[bool, ...]
    experts: ExpertShape
    shared_width: int
    """Neurons of the shared experts together."""
    tied_head: bool
    lookahead_layers: int
    """Layers after the last that predict further tokens: in the checkpoint, but not used here."""

    @property
    def lookahead_prefixes(self) -> tuple[str, ...]:
        return tuple(f"model.layers.{self.layers + index}." for index in range(self.lookahead_layers))

    @property
    def row_dim(self) -> int:
        """Width of a token's cache row: the latent, then the rotated key that all heads share."""
        return self.latent_rank + self.rope_dim


def read_architecture(checkpoint: Path, max_context: int | None = None) -> tuple[DsaArchitecture, Any]:
    """Read a checkpoint's config; returns transformers' config, too, for the rope parameters."""
    architecture, config = translated(checkpoint, unsupported, from_config)
    context = context_limit(architecture.context_length, max_context)
    return replace(architecture, context_length=context), config


def from_config(config: Any) -> DsaArchitecture:
    family, layers = DSA_FAMILIES[config.model_type], config.num_hidden_layers
    own_index = tuple(kind == "full" for kind in getattr(config, "indexer_types", ["full"] * layers))
    if len(own_index) != layers or not own_index[0]:
        raise UnsupportedCheckpoint(f"indexer_types must name {layers} layers and start with 'full'")
    check_sizes({name: getattr(config, name) for name in SIZES + INDEX_SIZES * family.indexed})
    if not family.indexed and config.head_dim != config.qk_rope_head_dim:
        raise UnsupportedCheckpoint(
            f"head_dim is {config.head_dim}, and qk_rope_head_dim {config.qk_rope_head_dim}"
        )
    if config.n_routed_experts % config.n_group or config.topk_group > config.n_group:
        raise UnsupportedCheckpoint(
            f"{config.n_routed_experts} experts cannot form {config.n_group} groups of which a token takes "
            f"{config.topk_group}"
        )
    return DsaArchitecture(
        family=config.model_type,
        vocab_size=config.vocab_size,
        context_length=context_length(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        latent_rank=config.kv_lora_rank,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        attention_bias=config.attention_bias,
        attention_scale=_attention_scale(config),
        norm_eps=config.rms_norm_eps,
        indexer=Indexer(
            heads=config.index_n_heads,
            head_dim=config.index_head_dim,
            top_k=config.index_topk,
            interleaved=family.interleaved_indexer,
        )
        if family.indexed
        else Indexer(1, 1, context_length(config), False),
        own_index=own_index if family.indexed else (False,) * layers,
        routed=tuple(kind == "sparse" for kind in config.mlp_layer_types)
        if family.indexed
        else tuple(layer >= config.first_k_dense_replace for layer in range(layers)),
        experts=ExpertShape(
            count=config.n_routed_experts,
            width=config.moe_intermediate_size,
            activation=config.hidden_act,
            routing=Routing(
                per_token=config.num_experts_per_tok,
                normalise=config.norm_topk_prob,
                sigmoid=True,
                scale=config.routed_scaling_factor,
                groups=config.n_group,
                groups_per_token=config.topk_group,
            ),
        ),
        shared_width=config.moe_intermediate_size * config.n_shared_experts,
        tied_head=bool(config.tie_word_embeddings),
        lookahead_layers=getattr(config, "num_nextn_predict_layers", None) or 0,
    )


def _attention_scale(config: Any) -> float:
    """The scale of q k^T, times the square of yarn's attention factor, which the rotary tables leave out."""
    scale: float = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    rope = config.rope_parameters
    factor = 1 if rope.get("rope_type", "default") == "default" else rope.get("factor") or 1
    if factor > 1 and (all_dims := rope.get("mscale_all_dim", 0)):
        scale *= (0.1 * all_dims * math.log(factor) + 1.0) ** 2
    return scale
