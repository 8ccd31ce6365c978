"""BERT and its kin: norms behind every block; they differ in embeddings, in heads and in the names of tensors."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.encoders.architecture import Disentangled, EncoderArchitecture, architecture_of
from hiscore.models.encoders.weights import EncoderReader, EncoderWeights, Names

BERT = Names("bert", "bert.pooler.dense")
ROBERTA = Names("roberta", "classifier.dense", classifier="classifier.out_proj")
ELECTRA = replace(ROBERTA, model="electra")
DISTILBERT = Names(
    "distilbert",
    "pre_classifier",
    layers="transformer.layer",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up=("ffn.lin1",),
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
)
ALBERT = Names(
    "albert",
    "albert.pooler",
    qkv=("attention.query", "attention.key", "attention.value"),
    output="attention.dense",
    attention_norm="attention.LayerNorm",
    up=("ffn",),
    down="ffn_output",
    mlp_norm="full_layer_layer_norm",
)
MPNET = replace(
    ROBERTA,
    model="mpnet",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)


def architecture(config: Any, **own: Any) -> EncoderArchitecture:
    follows_pad = ENCODER_FAMILIES[config.model_type].positions_follow_pad
    fields = {
        "head_activation": "tanh",
        "position_rows": config.max_position_embeddings,
        "first_position": config.pad_token_id + 1 if follows_pad else 0,
        "uncounted_id": config.pad_token_id if follows_pad else None,
        "token_types": getattr(config, "type_vocab_size", 0),
    }
    return architecture_of(config, **{**fields, **own})


def electra_architecture(config: Any) -> EncoderArchitecture:
    return architecture(config, head_activation="gelu")


def distilbert_architecture(config: Any) -> EncoderArchitecture:
    return architecture(
        config,
        intermediate_size=config.hidden_dim,
        norm_eps=1e-12,
        activation=config.activation,
        head_activation="relu",
        token_types=0,
    )


def albert_architecture(config: Any) -> EncoderArchitecture:
    return architecture(config, layers=config.num_hidden_layers * config.inner_group_num)


def load_albert(read: EncoderReader, config: Any) -> EncoderWeights:
    """An ALBERT: groups of layers serve several depths; embeddings are normalised, then projected."""
    at, depths, groups = "albert.encoder", config.num_hidden_layers, config.num_hidden_groups
    of_groups = [
        [
            read.layer(f"{at}.albert_layer_groups.{group}.albert_layers.{index}")
            for index in range(config.inner_group_num)
        ]
        for group in range(groups)
    ]
    width = config.embedding_size
    mapping = read.projection(f"{at}.embedding_hidden_mapping_in", out=config.hidden_size, inner=width)
    return read.weights(
        embeddings=replace(read.embeddings(width, width), behind_norm=mapping),
        layers=[layer for depth in range(depths) for layer in of_groups[int(depth / (depths / groups))]],
    )


def mpnet_architecture(config: Any) -> EncoderArchitecture:
    """Sizes of MPNet, whose logits have a bias for each head and distance, the same in all layers."""
    distances = Disentangled(1, _buckets(config.max_position_embeddings))
    return architecture(config, token_types=0, disentangled=distances)


def _buckets(context: int) -> Tensor:
    """Row in the table of biases of every distance from query to key, int32 [2 context - 1]."""
    # Transformers' own, so that no distance gets another bucket; other families need not import it.
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    rows: Tensor = MPNetEncoder.relative_position_bucket(-torch.arange(1 - context, context))
    return rows.int()


def load_mpnet(read: EncoderReader, config: Any) -> EncoderWeights:
    shape = config.relative_attention_num_buckets, config.num_attention_heads
    biases = read.read.tensor("mpnet.encoder.relative_attention_bias.weight", *shape)
    relative = RelativeProjections(None, None, biases.T.contiguous())
    return read.weights(lambda layer: relative)
