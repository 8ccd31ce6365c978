"""Encoders with rotary positions and gated MLPs: EuroBERT, ModernBERT, and Alibaba's NewModel, of gte."""

from typing import Any

from hiscore.models.encoders.architecture import EncoderArchitecture, architecture_of
from hiscore.models.encoders.weights import Names

EUROBERT = Names(
    "model",
    "dense",
    words="embed_tokens",
    embedding_norm=None,
    layers="layers",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    attention_norm="input_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    mlp_norm="post_attention_layernorm",
    final_norm="norm",
)
MODERNBERT = Names(
    "model",
    "head.dense",
    words="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layers="layers",
    qkv=("attn.Wqkv",),
    output="attn.Wo",
    attention_norm="attn_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    mlp_norm="mlp_norm",
    final_norm="final_norm",
    head_norm="head.norm",
)
NEW = Names(
    "new",
    "new.pooler.dense",
    qkv=("attention.qkv_proj",),
    output="attention.o_proj",
    attention_norm="attn_ln",
    up=("mlp.up_gate_proj",),
    factors_first=True,
    down="mlp.down_proj",
    mlp_norm="mlp_ln",
)
POOLINGS = {"bos": "first", "mean": "mean", "late": "mean of the head"}


def eurobert_architecture(config: Any) -> EncoderArchitecture:
    """Llama's layers with attention in both directions."""
    return architecture_of(
        config,
        norm_eps=config.rms_norm_eps,
        head_activation="gelu",
        rms_norms=True,
        pre_norm=True,
        gated=True,
        attention_bias=config.attention_bias,
        up_bias=config.mlp_bias,
        down_bias=config.mlp_bias,
        kv_heads=config.num_key_value_heads,
        pooling=POOLINGS[config.classifier_pooling],
        rope_kinds=(None,) * config.num_hidden_layers,
    )


def modernbert_architecture(config: Any) -> EncoderArchitecture:
    """Norms before every block, and layers that see only near tokens."""
    kinds = config.layer_types
    return architecture_of(
        config,
        norm_eps=config.norm_eps,
        activation=config.hidden_activation,
        head_activation=config.classifier_activation,
        pre_norm=True,
        gated=True,
        attention_bias=config.attention_bias,
        up_bias=config.mlp_bias,
        down_bias=config.mlp_bias,
        norm_bias=config.norm_bias,
        dense_bias=config.classifier_bias,
        pooling="mean" if config.classifier_pooling == "mean" else "first",
        reaches=tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds),
        rope_kinds=tuple(kinds),
    )


def new_architecture(config: Any) -> EncoderArchitecture:
    """Norms behind every block."""
    return architecture_of(
        config,
        head_activation="tanh",
        token_types=config.type_vocab_size,
        gated=True,
        up_bias=False,
        rope_kinds=(None,) * config.num_hidden_layers,
    )
