"""DeBERTa v2 and v3: BERT's layers with attention between content and relative positions."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.models.encoders.architecture import Disentangled, EncoderArchitecture, architecture_of
from hiscore.models.encoders.weights import Embeddings, EncoderReader, EncoderWeights, Names

ATTENTION = "attention.self"
NAMES = Names(
    "deberta",
    "pooler.dense",
    qkv=(f"{ATTENTION}.query_proj", f"{ATTENTION}.key_proj", f"{ATTENTION}.value_proj"),
)


def architecture(config: Any) -> EncoderArchitecture:
    kinds = config.pos_att_type or []
    terms = 1 + ("c2p" in kinds) + ("p2c" in kinds)
    return architecture_of(
        config,
        head_activation=config.pooler_hidden_act,
        position_rows=config.max_position_embeddings if config.position_biased_input else 0,
        token_types=config.type_vocab_size,
        disentangled=Disentangled(terms, relative_rows(config) if config.relative_attention else None),
    )


def relative_rows(config: Any) -> Tensor:
    """Row in the table of relative positions of every distance from query to key, int32 [2 context - 1].

    Distances run from 1 - context to context - 1.
    """
    context = config.max_position_embeddings
    span, buckets, farthest = _sizes(config)
    distance = torch.arange(1 - context, context)
    if buckets > 0:
        # Transformers' own, so that no distance gets another bucket; other families need not import it.
        from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

        distance = make_log_bucket_position(distance, buckets, farthest).long()
    return (distance + span).clamp(0, 2 * span - 1).int()


def load(read: EncoderReader, config: Any) -> EncoderWeights:
    relative = _relative_embeddings(read, config)
    return read.weights(
        lambda layer: _projected(read, config, f"{layer}.{ATTENTION}", relative), _embeddings(read, config)
    )


def _embeddings(read: EncoderReader, config: Any) -> Embeddings:
    hidden = config.hidden_size
    if (width := getattr(config, "embedding_size", hidden)) == hidden:
        return read.embeddings()
    projection = read.projection("deberta.embeddings.embed_proj", out=hidden, inner=width, bias=False)
    return replace(read.embeddings(width), projection=projection)


def _sizes(config: Any) -> tuple[int, int, int]:
    """Half the rows of the table of relative positions, the buckets (below 1: none), the farthest distance."""
    farthest = getattr(config, "max_relative_positions", -1)
    if farthest < 1:
        farthest = config.max_position_embeddings
    buckets = getattr(config, "position_buckets", -1)
    return (buckets if buckets > 0 else farthest), buckets, farthest


def _relative_embeddings(read: EncoderReader, config: Any) -> Tensor | None:
    """The table of relative positions in float32, normalised where the config says so."""
    if not config.relative_attention:
        return None
    name, rows = "deberta.encoder.rel_embeddings.weight", 2 * _sizes(config)[0]
    table = read.read.tensor(name, rows, config.hidden_size, dtype=torch.float32)
    norms = [kind.strip() for kind in getattr(config, "norm_rel_ebd", "none").lower().split("|")]
    return read.norm("deberta.encoder.LayerNorm")(table) if "layer_norm" in norms else table


def _projected(
    read: EncoderReader, config: Any, prefix: str, relative: Tensor | None
) -> RelativeProjections | None:
    """A layer's keys and queries of relative positions: they depend on no token, so they are computed once."""
    if relative is None:
        return None
    kinds = config.pos_att_type or []
    shared = getattr(config, "share_att_key", False)
    names = (
        {"c2p": "key_proj", "p2c": "query_proj"}
        if shared
        else {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}
    )

    hidden = config.hidden_size

    def project(kind: str) -> Tensor | None:
        if kind not in kinds:
            return None
        # What transformers computes in every forward, here in float32 and rounded once.
        name, dtype = f"{prefix}.{names[kind]}", read.read.dtype
        weight = read.read.tensor(f"{name}.weight", hidden, hidden, dtype=torch.float32)
        bias = read.read.tensor(f"{name}.bias", hidden, dtype=torch.float32)
        projected = functional.linear(relative, weight, bias).to(dtype)
        of_heads: Tensor = projected.unflatten(1, (config.num_attention_heads, -1))
        return of_heads.transpose(0, 1).contiguous()

    return RelativeProjections(project("c2p"), project("p2c"))
