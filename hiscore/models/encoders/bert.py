"""BERT, RoBERTa and ELECTRA: absolute positions, token types, norms behind every block; heads differ."""

from typing import Any

from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.weights import Embeddings, EncoderReader, EncoderWeights


def architecture(config: Any) -> EncoderArchitecture:
    family = ENCODER_FAMILIES[config.model_type]
    follows_pad = family.positions_follow_pad
    return EncoderArchitecture(
        family=family.name,
        vocab_size=config.vocab_size,
        context_length=family.context_length(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        labels=config.num_labels,
        norm_eps=config.layer_norm_eps,
        activation=config.hidden_act,
        head_activation="gelu" if family.name == "electra" else "tanh",
        first_position=config.pad_token_id + 1 if follows_pad else 0,
        uncounted_id=config.pad_token_id if follows_pad else None,
        token_types=config.type_vocab_size,
    )


def load_bert(read: EncoderReader, config: Any) -> EncoderWeights:
    """A BERT: the head is the pooler, then the classifier."""
    return _load(read, config, "bert", lambda: read.head("bert.pooler.dense", "classifier"))


def load_roberta(read: EncoderReader, config: Any) -> EncoderWeights:
    """A RoBERTa or XLM-RoBERTa: the head has its own dense layer, and a pooler in the file is not used."""
    return _load(read, config, "roberta", lambda: read.head("classifier.dense", "classifier.out_proj"))


def load_electra(read: EncoderReader, config: Any) -> EncoderWeights:
    """An ELECTRA, with a head like RoBERTa's."""
    return _load(read, config, "electra", lambda: read.head("classifier.dense", "classifier.out_proj"))


def _load(read: EncoderReader, config: Any, prefix: str, head: Any) -> EncoderWeights:
    at, width = f"{prefix}.embeddings", config.hidden_size
    return EncoderWeights(
        embeddings=Embeddings(
            words=read.read.tensor(f"{at}.word_embeddings.weight", config.vocab_size, width),
            positions=read.read.tensor(
                f"{at}.position_embeddings.weight", config.max_position_embeddings, width
            ),
            types=read.read.tensor(f"{at}.token_type_embeddings.weight", config.type_vocab_size, width),
            projection=None,
            norm=read.norm(f"{at}.LayerNorm"),
        ),
        layers=tuple(
            read.post_norm_layer(f"{prefix}.encoder.layer.{index}", ("query", "key", "value"))
            for index in range(config.num_hidden_layers)
        ),
        final_norm=None,
        head=head(),
    )
