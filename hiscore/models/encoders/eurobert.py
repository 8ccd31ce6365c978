"""EuroBERT: Llama's layers with attention in both directions."""

from typing import Any, Literal

import torch
from torch import Tensor

from hiscore.models.encoders.architecture import EncoderArchitecture, common_sizes
from hiscore.models.encoders.weights import Embeddings, EncoderLayer, EncoderReader, EncoderWeights

POOLINGS: dict[str, Literal["first", "mean", "mean of the head"]] = {
    "bos": "first",
    "mean": "mean",
    "late": "mean of the head",
}


def architecture(config: Any) -> EncoderArchitecture:
    return EncoderArchitecture(
        **common_sizes(config),
        intermediate_size=config.intermediate_size,
        norm_eps=config.rms_norm_eps,
        activation=config.hidden_act,
        head_activation="gelu",
        rms_norms=True,
        pre_norm=True,
        gated=True,
        kv_heads=config.num_key_value_heads,
        pooling=POOLINGS[config.classifier_pooling],
        rope_kinds=(None,) * config.num_hidden_layers,
    )


def load(read: EncoderReader, config: Any) -> EncoderWeights:
    return EncoderWeights(
        embeddings=Embeddings(
            words=read.read.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        ),
        layers=tuple(
            _layer(read, config, f"model.layers.{index}") for index in range(config.num_hidden_layers)
        ),
        final_norm=read.norm("model.norm"),
        head=read.head("dense", "classifier"),
    )


def _layer(read: EncoderReader, config: Any, prefix: str) -> EncoderLayer:
    attention, mlp, inner = f"{prefix}.self_attn", f"{prefix}.mlp", config.intermediate_size
    wide = config.num_key_value_heads * config.head_dim
    widths = {"q_proj": config.hidden_size, "k_proj": wide, "v_proj": wide}
    return EncoderLayer(
        attention_norm=read.norm(f"{prefix}.input_layernorm"),
        qkv=read.read.projection(
            {f"{attention}.{name}": width for name, width in widths.items()},
            config.hidden_size,
            config.attention_bias,
            _repeated(config),
        ),
        relative=None,
        output=read.projection(f"{attention}.o_proj", out=config.hidden_size, bias=config.attention_bias),
        mlp_norm=read.norm(f"{prefix}.post_attention_layernorm"),
        up=read.projection(f"{mlp}.gate_proj", f"{mlp}.up_proj", out=inner, bias=config.mlp_bias),
        down=read.projection(f"{mlp}.down_proj", out=config.hidden_size, inner=inner, bias=config.mlp_bias),
    )


def _repeated(config: Any) -> Tensor:
    """Rows of q, then of k and v, where each head of those is repeated for all heads of q that it serves."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    of_head = torch.arange(config.head_dim)
    each = torch.arange(kv_heads).repeat_interleave(heads // kv_heads)
    firsts = torch.cat((torch.arange(heads), heads + each, heads + kv_heads + each))
    rows: Tensor = (firsts[:, None] * config.head_dim + of_head).flatten()
    return rows
