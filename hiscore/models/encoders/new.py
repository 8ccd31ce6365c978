"""Alibaba's NewModel, of gte: rotary positions, norms behind every block, a gated MLP."""

from typing import Any

import torch

from hiscore.models.encoders.architecture import EncoderArchitecture, common_sizes
from hiscore.models.encoders.weights import EncoderLayer, EncoderReader, EncoderWeights


def architecture(config: Any) -> EncoderArchitecture:
    return EncoderArchitecture(
        **common_sizes(config),
        intermediate_size=config.intermediate_size,
        norm_eps=config.layer_norm_eps,
        activation=config.hidden_act,
        head_activation="tanh",
        token_types=config.type_vocab_size,
        gated=True,
        rope_kinds=(None,) * config.num_hidden_layers,
    )


def load(read: EncoderReader, config: Any) -> EncoderWeights:
    return EncoderWeights(
        embeddings=read.embeddings("new.embeddings", positions=0),
        layers=tuple(
            _layer(read, config, f"new.encoder.layer.{index}") for index in range(config.num_hidden_layers)
        ),
        final_norm=None,
        head=read.head("new.pooler.dense", "classifier"),
    )


def _layer(read: EncoderReader, config: Any, prefix: str) -> EncoderLayer:
    hidden, inner, attention = config.hidden_size, config.intermediate_size, f"{prefix}.attention"
    # Stored are the factors, then what is activated.
    activated_first = torch.arange(2 * inner).roll(inner)
    return EncoderLayer(
        attention_norm=read.norm(f"{prefix}.attn_ln"),
        qkv=read.projection(f"{attention}.qkv_proj", out=3 * hidden),
        relative=None,
        output=read.projection(f"{attention}.o_proj", out=hidden),
        mlp_norm=read.norm(f"{prefix}.mlp_ln"),
        up=read.read.projection({f"{prefix}.mlp.up_gate_proj": 2 * inner}, hidden, False, activated_first),
        down=read.projection(f"{prefix}.mlp.down_proj", out=hidden, inner=inner),
    )
