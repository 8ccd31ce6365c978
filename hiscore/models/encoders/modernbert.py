"""ModernBERT: rotary positions, norms before every block, a gated MLP, layers that see only near tokens."""

from typing import Any

from hiscore.models.encoders.architecture import EncoderArchitecture, common_sizes
from hiscore.models.encoders.weights import Embeddings, EncoderLayer, EncoderReader, EncoderWeights


def architecture(config: Any) -> EncoderArchitecture:
    kinds = config.layer_types
    return EncoderArchitecture(
        **common_sizes(config),
        intermediate_size=config.intermediate_size,
        norm_eps=config.norm_eps,
        activation=config.hidden_activation,
        head_activation=config.classifier_activation,
        pre_norm=True,
        gated=True,
        pooling="mean" if config.classifier_pooling == "mean" else "first",
        reaches=tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds),
        rope_kinds=tuple(kinds),
    )


def load(read: EncoderReader, config: Any) -> EncoderWeights:
    return EncoderWeights(
        embeddings=Embeddings(
            words=read.read.tensor(
                "model.embeddings.tok_embeddings.weight", config.vocab_size, config.hidden_size
            ),
            norm=read.norm("model.embeddings.norm", config.norm_bias),
        ),
        layers=tuple(_layer(read, config, index) for index in range(config.num_hidden_layers)),
        final_norm=read.norm("model.final_norm", config.norm_bias),
        head=read.head(
            "head.dense",
            "classifier",
            norm=read.norm("head.norm", config.norm_bias),
            dense_bias=config.classifier_bias,
        ),
    )


def _layer(read: EncoderReader, config: Any, index: int) -> EncoderLayer:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    return EncoderLayer(
        # The embeddings are already normalised.
        attention_norm=read.norm(f"{prefix}.attn_norm", config.norm_bias) if index else None,
        qkv=read.projection(f"{prefix}.attn.Wqkv", out=3 * hidden, bias=config.attention_bias),
        relative=None,
        output=read.projection(f"{prefix}.attn.Wo", out=hidden, bias=config.attention_bias),
        mlp_norm=read.norm(f"{prefix}.mlp_norm", config.norm_bias),
        up=read.projection(f"{prefix}.mlp.Wi", out=2 * inner, bias=config.mlp_bias),
        down=read.projection(f"{prefix}.mlp.Wo", out=hidden, inner=inner, bias=config.mlp_bias),
    )
