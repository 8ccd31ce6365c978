"""What the decoder must know of a family, as data: one forward serves them all.

Read from transformers' config, whose classes fill in each family's defaults. The fields say what differs between
Llama, Qwen2, Qwen3, Mistral, Gemma 2 and Gemma 3 (text); tests compare each with transformers' own model.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hiscore.models.support import CheckpointFacts, unsupported


class UnsupportedCheckpoint(Exception):
    """The decoder cannot compute this checkpoint; the message says why."""


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of one checkpoint."""

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
    """Gemma stores RMSNorm weights less one."""
    sandwich_norms: bool
    """Gemma normalises each block's output as well as its input."""
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
    """For each layer, the key of its rope parameters where the config has several."""
    tied_head: bool


def read_architecture(checkpoint: Path) -> tuple[Architecture, Any]:
    """Read a checkpoint's `Architecture`, and transformers' config for what stays there (rope parameters).

    Raises:
        UnsupportedCheckpoint: a family or a feature that the decoder does not compute.
    """
    if reason := unsupported(json.loads((checkpoint / "config.json").read_text())):
        raise UnsupportedCheckpoint(reason)
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    return from_config(config), config


def from_config(config: Any) -> Architecture:
    """Translate a transformers config of one of `capabilities.FAMILIES`."""
    family = config.model_type
    gemma = family.startswith("gemma")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        windowed = family == "mistral" and config.sliding_window
        kinds = ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers
    is_classifier = config.architectures[0].endswith("ForSequenceClassification")
    several_ropes = set(kinds) & set(config.rope_parameters)
    return Architecture(
        family=family,
        is_classifier=is_classifier,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=config.rms_norm_eps,
        norm_plus_one=gemma,
        sandwich_norms=gemma,
        qk_norm=family in ("qwen3", "gemma3_text"),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        activation=config.hidden_activation if gemma else config.hidden_act,
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        attention_scale=(config.query_pre_attn_scalar if gemma else head_dim) ** -0.5,
        attention_soft_cap=config.attn_logit_softcapping if family == "gemma2" else None,
        # A classifier's logits are its score head's, which no family caps.
        logit_soft_cap=config.final_logit_softcapping if gemma and not is_classifier else None,
        windows=tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds),
        rope_kinds=tuple(kind if several_ropes else None for kind in kinds),
        tied_head=bool(config.tie_word_embeddings) and not is_classifier,
    )


def read_facts(checkpoint: Path) -> CheckpointFacts:
    """Sizes and kind of a checkpoint, defaults of its family included."""
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    return CheckpointFacts(
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        is_classifier=config.architectures[0].endswith("ForSequenceClassification"),
    )
