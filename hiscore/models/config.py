"""Sizes and switches of a checkpoint, from its config.json and the table of families.

The config is read by transformers, whose classes fill in each family's defaults.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hiscore.models.families import DECODER_FAMILIES
from hiscore.models.support import CheckpointFacts, context_limit, is_classifier, unscorable


class UnsupportedCheckpoint(Exception):
    """No model here computes this checkpoint; the message says why."""


@dataclass(frozen=True)
class Architecture:
    """What the decoder must know of a checkpoint. See `DecoderFamily` for the switches."""

    family: str
    is_classifier: bool
    vocab_size: int
    context_length: int
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    norm_plus_one: bool
    sandwich_norms: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: str
    embedding_scale: float
    attention_scale: float
    attention_soft_cap: float | None
    logit_soft_cap: float | None
    windows: tuple[int | None, ...]
    """For each layer, how many tokens a token sees, itself included; None: all."""
    rope_kinds: tuple[str | None, ...]
    """For each layer, its key in rope_parameters where the config has several, else None."""
    tied_head: bool


def read_architecture(checkpoint: Path, max_context: int | None = None) -> tuple[Architecture, Any]:
    """Read a checkpoint's config.

    Args:
        checkpoint: Its directory.
        max_context: The setting; None: not set.

    Returns:
        The `Architecture`, and transformers' config for the rope parameters.

    Raises:
        UnsupportedCheckpoint: The decoder does not compute the family, or a feature of the checkpoint.
        ValueError: `max_context` exceeds the checkpoint's context.
    """
    if reason := unscorable(json.loads((checkpoint / "config.json").read_text())):
        raise UnsupportedCheckpoint(reason)
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    architecture = from_config(config)
    context = context_limit(architecture.context_length, max_context)
    return replace(architecture, context_length=context), config


def from_config(config: Any) -> Architecture:
    """Translate a transformers config of one of `families.DECODER_FAMILIES`."""
    family = DECODER_FAMILIES[config.model_type]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        windowed = family.windowed and config.sliding_window
        layer_types = ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers
    classifies = is_classifier(config.architectures)
    rope_per_kind = set(layer_types) & set(config.rope_parameters)

    def value(key: str | None) -> Any:
        return None if key is None else getattr(config, key)

    return Architecture(
        family=family.name,
        is_classifier=classifies,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        norm_plus_one=family.norm_plus_one,
        sandwich_norms=family.sandwich_norms,
        qk_norm=family.qk_norm,
        qkv_bias=attention_bias or family.qkv_bias,
        output_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        activation=getattr(config, family.activation_key),
        embedding_scale=config.hidden_size**0.5 if family.scaled_embedding else 1.0,
        attention_scale=(value(family.attention_scale_key) if family.attention_scale_key else head_dim)
        ** -0.5,
        attention_soft_cap=value(family.attention_soft_cap_key),
        logit_soft_cap=None if classifies else value(family.logit_soft_cap_key),
        windows=tuple(config.sliding_window if kind == "sliding_attention" else None for kind in layer_types),
        rope_kinds=tuple(kind if rope_per_kind else None for kind in layer_types),
        tied_head=bool(config.tie_word_embeddings) and not classifies,
    )


def read_facts(checkpoint: Path, max_context: int | None = None) -> CheckpointFacts:
    """Sizes and kind of any checkpoint that transformers knows, served or not.

    Args:
        checkpoint: Its directory.
        max_context: The setting; None: not set.

    Raises:
        ValueError: `max_context` exceeds the checkpoint's context.
    """
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    return CheckpointFacts(
        vocab_size=config.vocab_size,
        context_length=context_limit(config.max_position_embeddings, max_context),
        is_classifier=is_classifier(config.architectures),
    )
