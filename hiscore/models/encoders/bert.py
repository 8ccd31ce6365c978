"""BERT and its kin: norms behind every block; they differ in embeddings, in heads and in the names of tensors."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.encoders.architecture import Disentangled, EncoderArchitecture, common_sizes
from hiscore.models.encoders.weights import EncoderReader, EncoderWeights, LayerNames

BERT = LayerNames()


@dataclass(frozen=True)
class Layout:
    """Names of tensors outside the layers, and of a layer's.

    Attributes:
        dense: First layer of the head. Where that is the head's own, a pooler in the file is not used.
    """

    prefix: str
    dense: str = "classifier.dense"
    classifier: str = "classifier.out_proj"
    layers: str = "encoder.layer"
    names: LayerNames = BERT


DISTILBERT = LayerNames(
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
)
ALBERT = LayerNames(
    qkv=("attention.query", "attention.key", "attention.value"),
    output="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    mlp_norm="full_layer_layer_norm",
)
MPNET = LayerNames(
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
ROBERTA = Layout("roberta")
LAYOUTS = {
    "bert": Layout("bert", "bert.pooler.dense", "classifier"),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": Layout("electra"),
    "distilbert": Layout("distilbert", "pre_classifier", "classifier", "transformer.layer", DISTILBERT),
    "mpnet": Layout("mpnet", names=MPNET),
}


def architecture(config: Any) -> EncoderArchitecture:
    family = ENCODER_FAMILIES[config.model_type]
    follows_pad = family.positions_follow_pad
    return EncoderArchitecture(
        **common_sizes(config),
        intermediate_size=config.intermediate_size,
        norm_eps=config.layer_norm_eps,
        activation=config.hidden_act,
        head_activation="gelu" if family.name == "electra" else "tanh",
        first_position=config.pad_token_id + 1 if follows_pad else 0,
        uncounted_id=config.pad_token_id if follows_pad else None,
        token_types=getattr(config, "type_vocab_size", 0),
    )


def distilbert_architecture(config: Any) -> EncoderArchitecture:
    return EncoderArchitecture(
        **common_sizes(config),
        intermediate_size=config.hidden_dim,
        norm_eps=1e-12,
        activation=config.activation,
        head_activation="relu",
    )


def albert_architecture(config: Any) -> EncoderArchitecture:
    return replace(architecture(config), layers=config.num_hidden_layers * config.inner_group_num)


def load(read: EncoderReader, config: Any, relative: RelativeProjections | None = None) -> EncoderWeights:
    layout = LAYOUTS[config.model_type]
    return EncoderWeights(
        embeddings=read.embeddings(f"{layout.prefix}.embeddings", config.max_position_embeddings),
        layers=tuple(
            read.post_norm_layer(f"{layout.prefix}.{layout.layers}.{index}", layout.names, relative)
            for index in range(config.num_hidden_layers)
        ),
        final_norm=None,
        head=read.head(layout.dense, layout.classifier),
    )


def load_albert(read: EncoderReader, config: Any) -> EncoderWeights:
    """An ALBERT: groups of layers serve several depths; embeddings are normalised, then projected."""
    at, depths, groups = "albert.encoder", config.num_hidden_layers, config.num_hidden_groups
    of_groups = [
        [
            read.post_norm_layer(f"{at}.albert_layer_groups.{group}.albert_layers.{index}", ALBERT)
            for index in range(config.inner_group_num)
        ]
        for group in range(groups)
    ]
    width = config.embedding_size
    mapping = read.projection(f"{at}.embedding_hidden_mapping_in", out=config.hidden_size, inner=width)
    embeddings = read.embeddings("albert.embeddings", config.max_position_embeddings, width)
    return EncoderWeights(
        embeddings=replace(embeddings, behind_norm=mapping),
        layers=tuple(layer for depth in range(depths) for layer in of_groups[int(depth / (depths / groups))]),
        final_norm=None,
        head=read.head("albert.pooler", "classifier"),
    )


def mpnet_architecture(config: Any) -> EncoderArchitecture:
    """Sizes of MPNet, whose logits have a bias for each head and distance, the same in all layers."""
    distances = Disentangled(1, _buckets(config.max_position_embeddings))
    return replace(architecture(config), token_types=0, disentangled=distances)


def _buckets(context: int) -> Tensor:
    """Row in the table of biases of every distance from query to key, int32 [2 context - 1]."""
    # Transformers' own, so that no distance gets another bucket; other families need not import it.
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    rows: Tensor = MPNetEncoder.relative_position_bucket(-torch.arange(1 - context, context))
    return rows.int()


def load_mpnet(read: EncoderReader, config: Any) -> EncoderWeights:
    shape = config.relative_attention_num_buckets, config.num_attention_heads
    biases = read.read.tensor("mpnet.encoder.relative_attention_bias.weight", *shape)
    return load(read, config, RelativeProjections(None, None, biases.T.contiguous()))
