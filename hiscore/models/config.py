"""Sizes and switches of a checkpoint, from its config.json and the table of families.

The config is read by transformers, whose classes fill in each family's defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hiscore.layers.rope import context_length, original_context
from hiscore.layers.weights import Routing
from hiscore.models.config_file import check_sizes, malformed_refused, of_texts, read_config
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.families import DECODER_FAMILIES
from hiscore.models.family import DecoderFamily, Flag
from hiscore.models.quantization.schemes import in_fp8
from hiscore.models.stored_config import stored_config
from hiscore.models.support import context_limit, is_classifier, unscorable
from hiscore.models.text_towers import text_config
from hiscore.recurrence.gated_delta_net import RecurrentShape

SIZES = ("vocab_size", "layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim")
LAYER_TYPES = ("full_attention", "sliding_attention")
RECURRENT_LAYER_TYPES = ("full_attention", "linear_attention")


@dataclass(frozen=True)
class ExpertShape:
    count: int
    width: int
    activation: str
    routing: Routing


@dataclass(frozen=True)
class Architecture:
    """Facts about a checkpoint that the decoder needs. See `DecoderFamily` for the switches."""

    family: DecoderFamily
    labels: int | None
    """Number of a classifier's labels; None: a causal LM."""
    vocab_size: int
    context_length: int
    original_context: int | None
    """Tokens beyond which longrope rotates by its long factors; None: all sequences are rotated alike."""
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    """Epsilon for the residual stream as kept: divided by the config's multiplier of each block's output."""
    norm_plus_one: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    activation: str
    embedding_scale: float
    """Scale for the residual stream as it is kept."""
    attention_scale: float
    attention_soft_cap: float | None
    logit_scale: float
    logit_soft_cap: float | None
    windows: tuple[int | None, ...]
    """Tokens that a token of each layer sees, itself included; None: all."""
    rope_kinds: tuple[str | bool, ...]
    """Key of each layer in rope_parameters if the config has several; else True for a layer that rotates."""
    rotated_dim: int
    tied_head: bool
    experts: ExpertShape | None
    routed: tuple[bool, ...]
    """True for each layer whose MLP is a mixture of experts."""
    recurrent: tuple[bool, ...]
    """True for each layer that is a gated delta net."""
    recurrence: RecurrentShape | None
    """Sizes of those layers; None: there are none."""
    stored_in_fp8: bool = False
    """True if projections may be computed in fp8 as the checkpoint stores them."""

    @property
    def is_classifier(self) -> bool:
        return self.labels is not None

    @property
    def attention_layers(self) -> int:
        """Number of layers that keep keys and values."""
        return self.recurrent.count(False)

    @property
    def recurrent_layers(self) -> int:
        """Number of layers that keep a state."""
        return self.recurrent.count(True)


def read_architecture(checkpoint: Path, max_context: int | None = None) -> tuple[Architecture, Any]:
    """Read a checkpoint's config; returns transformers' config, too, for the rope parameters.

    Raises:
        UnsupportedCheckpoint: The decoder does not compute the family, or a feature of the checkpoint.
        ValueError: `max_context` exceeds the checkpoint's context.
    """
    if reason := unscorable(stored_config(checkpoint)):
        raise UnsupportedCheckpoint(reason)
    config = read_config(checkpoint)
    # Once more with what transformers made of it: defaults, and keys that replace others.
    if reason := unscorable(config.to_dict()):
        raise UnsupportedCheckpoint(reason)
    with malformed_refused():
        architecture = from_config(config)
    context = context_limit(architecture.context_length, max_context)
    original = architecture.original_context
    if original is not None and context <= original:
        original = None
    return replace(architecture, context_length=context, original_context=original), of_texts(config)


def from_config(whole: Any) -> Architecture:
    """Translate a transformers config of one of `DECODER_FAMILIES`, or of one of `TEXT_TOWERS`."""
    config = of_texts(whole)
    family = DECODER_FAMILIES[config.model_type]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    classifies = is_classifier(whole.architectures)

    def flag(value: Flag) -> bool:
        return bool(getattr(config, value)) if isinstance(value, str) else value

    def value(key: str | None, otherwise: Any = None) -> Any:
        return otherwise if key is None else getattr(config, key, otherwise)

    residual_scale = value(family.residual_scale_key, 1.0)
    embedding_scale = (
        config.hidden_size**0.5 if family.scaled_embedding else value(family.embedding_scale_key, 1.0)
    )
    inverse_square = value(family.attention_scale_key, head_dim)
    logit_scale = value(family.logit_scale_key, 1.0) / value(family.logit_divisor_key, 1.0)
    rotated_share = config.rope_parameters.get("partial_rotary_factor", 1.0) if family.partial_rope else 1.0

    windows, recurrent = _windows(family, config), _recurrent(family, config)
    architecture = Architecture(
        family=family,
        labels=whole.num_labels if classifies else None,
        vocab_size=config.vocab_size,
        context_length=context_length(config),
        original_context=original_context(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm_eps=(config.layer_norm_eps if family.layer_norms else config.rms_norm_eps) / residual_scale**2,
        norm_plus_one=family.norm_plus_one,
        qk_norm=flag(family.qk_norm),
        qkv_bias=flag(family.qkv_bias),
        output_bias=flag(family.output_bias),
        mlp_bias=flag(family.mlp_bias),
        activation=getattr(config, family.activation_key),
        embedding_scale=embedding_scale / residual_scale,
        attention_scale=value(family.attention_multiplier_key, inverse_square**-0.5),
        attention_soft_cap=value(family.attention_soft_cap_key),
        logit_scale=1.0 if classifies else logit_scale,
        # transformers caps neither a classifier's logits nor those of a model of texts and images.
        logit_soft_cap=None if classifies or config is not whole else value(family.logit_soft_cap_key),
        windows=windows,
        rope_kinds=_rope_kinds(family, config, windows),
        rotated_dim=int(head_dim * rotated_share),
        tied_head=bool(whole.tie_word_embeddings) and not classifies,
        experts=_experts(family, config),
        # Where attention and MLP read the same rows, those cannot be in fp8 for one of them alone.
        stored_in_fp8=in_fp8(text_config(whole.to_dict())) and not family.parallel_mlp,
        recurrent=recurrent,
        recurrence=_recurrence(config) if any(recurrent) else None,
        routed=tuple(_is_routed(family, config, index) for index in range(config.num_hidden_layers)),
    )
    check_sizes({name: getattr(architecture, name) for name in SIZES})
    _check_heads(architecture)
    return architecture


def _check_heads(a: Architecture) -> None:
    if a.heads % a.kv_heads:
        raise UnsupportedCheckpoint(
            f"{a.heads} attention heads cannot share {a.kv_heads} heads of keys and values"
        )
    if a.head_dim % 2:
        raise UnsupportedCheckpoint(f"head_dim is {a.head_dim}: rotary embeddings need an even one")
    if a.rotated_dim not in range(2, a.head_dim + 1, 2):
        raise UnsupportedCheckpoint(
            f"partial_rotary_factor rotates {a.rotated_dim} of {a.head_dim} dimensions, not an even number of them"
        )


def _experts(family: DecoderFamily, config: Any) -> ExpertShape | None:
    if (has := family.experts) is None:
        return None
    normalise = has.normalise if isinstance(has.normalise, bool) else bool(getattr(config, has.normalise))
    if not 1 <= config.num_experts_per_tok <= getattr(config, has.count_key):
        raise UnsupportedCheckpoint(
            f"num_experts_per_tok is {config.num_experts_per_tok}, of {getattr(config, has.count_key)} experts"
        )
    return ExpertShape(
        count=getattr(config, has.count_key),
        width=getattr(config, has.width_key),
        activation=has.activation or getattr(config, family.activation_key),
        routing=Routing(per_token=config.num_experts_per_tok, normalise=normalise),
    )


def _is_routed(family: DecoderFamily, config: Any, index: int) -> bool:
    if family.experts is None or not family.experts.dense_layers:
        return family.experts is not None
    return index not in config.mlp_only_layers and (index + 1) % config.decoder_sparse_step == 0


def _windows(family: DecoderFamily, config: Any) -> tuple[int | None, ...]:
    if family.windowed == "never":
        return (None,) * int(config.num_hidden_layers)
    if family.windowed == "always":
        return (config.sliding_window,) * int(config.num_hidden_layers)
    kinds: list[str] = config.layer_types
    if unknown := sorted(set(kinds) - set(LAYER_TYPES)):
        raise UnsupportedCheckpoint(f"layer type '{unknown[0]}' is none of {', '.join(LAYER_TYPES)}")
    if "sliding_attention" in kinds and config.sliding_window is None:
        raise UnsupportedCheckpoint("layer_types names sliding_attention, and there is no sliding_window")
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)


def _recurrent(family: DecoderFamily, config: Any) -> tuple[bool, ...]:
    if not family.recurrent:
        return (False,) * int(config.num_hidden_layers)
    kinds: list[str] = config.layer_types
    if unknown := sorted(set(kinds) - set(RECURRENT_LAYER_TYPES)):
        raise UnsupportedCheckpoint(
            f"layer type '{unknown[0]}' is none of {', '.join(RECURRENT_LAYER_TYPES)}"
        )
    return tuple(kind == "linear_attention" for kind in kinds)


def _recurrence(config: Any) -> RecurrentShape:
    shape = RecurrentShape(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
    )
    check_sizes(vars(shape))
    if shape.value_heads % shape.key_heads:
        raise UnsupportedCheckpoint(
            f"linear_num_value_heads {shape.value_heads} is no multiple of linear_num_key_heads {shape.key_heads}"
        )
    return shape


def _rope_kinds(family: DecoderFamily, config: Any, windows: Sequence[int | None]) -> tuple[str | bool, ...]:
    """Each layer's key in rope_parameters where there are several; else True for a layer that rotates."""
    kinds = config.layer_types if family.ropes_by_layer_type else [True] * len(windows)
    rotates: Sequence[Any] = [True] * len(windows)
    if family.unrotated == "no_rope_layers":
        rotates = config.no_rope_layers
    # EXAONE 4 without windows rotates in all layers.
    elif family.unrotated == "full_attention" and config.sliding_window is not None:
        rotates = windows
    return tuple(bool(turns) and kind for turns, kind in zip(rotates, kinds, strict=True))
