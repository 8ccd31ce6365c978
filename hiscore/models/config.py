"""Sizes and switches of a checkpoint, from its config.json and the table of families.

The config is read by transformers, whose classes fill in each family's defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hiscore.layers.rope import context_length, original_context
from hiscore.layers.weights import Routing
from hiscore.models.config_file import check_sizes, of_texts, translated
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.families import (
    DECODER_FAMILIES,
    MODULAR_POOLINGS,
    POOLINGS,
    attends_both_ways,
    is_read_whole,
)
from hiscore.models.family import (
    PROCESS_REWARD_MODEL,
    RANKING,
    REWARD_MODEL,
    TOKEN_CLASSIFIER,
    DecoderFamily,
    Flag,
    guard_labels,
    is_classifier,
    own_label_count,
    scores_tokens,
)
from hiscore.models.quantization.schemes import in_fp8
from hiscore.models.support import context_limit, unscorable
from hiscore.models.text_towers import text_config
from hiscore.recurrence.gated_delta_net import RecurrentShape

SIZES = ("vocab_size", "layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim")
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class ExpertShape:
    count: int
    width: int
    activation: str
    routing: Routing
    shared_width: int | None = None
    """Neurons of the shared expert; None: there is none."""


@dataclass(frozen=True)
class Architecture:
    """Facts about a checkpoint that the decoder needs. See `DecoderFamily` for the switches."""

    family: DecoderFamily
    labels: int | None
    """Number of a classifier's labels; None: a causal LM."""
    deep_head: bool
    """True if a classifier's head has two layers; a projector's have no biases."""
    head_bias: bool
    """True if its one layer has a bias."""
    scores_tokens: bool
    """True if a classifier is read at tokens."""
    guard_labels: tuple[int, ...]
    """Labels in each group of a guard's; empty: it is none."""
    guard_width: int
    """Width of each of a guard's two heads."""
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
    """Tokens that a token of each layer sees, itself included, to either side with a `pooling`; None: all."""
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
    head_sizes: tuple[tuple[int, int], ...]
    """Heads of keys and values of each layer, and their dimensions; `kv_heads` and `head_dim` are the most."""
    kv_sources: tuple[int, ...]
    """Index of the layer whose keys and values each layer reads: its own, or an earlier one's."""
    mlp_widths: tuple[int, ...]
    own_input: int
    """Numbers of a token that every layer gets for itself; 0: none."""
    own_vocabulary: int
    keys_as_values: tuple[bool, ...]
    """True for each layer whose values are its keys before their norm."""
    pooling: Literal["first", "last", "mean"] | None = None
    """Tokens that the head reads of a classifier that reads every item with its query; None: no such one."""
    causal: bool = True
    """False if a classifier attends in both directions."""
    modular: bool = False
    """True if its head is one of sentence-transformers' modules."""
    stored_in_fp8: bool = False
    """True if projections may be computed in fp8 as the checkpoint stores them."""

    @property
    def is_classifier(self) -> bool:
        return self.labels is not None

    @property
    def keyless(self) -> tuple[bool, ...]:
        return tuple(
            recurrent or source != index
            for index, (recurrent, source) in enumerate(zip(self.recurrent, self.kv_sources, strict=True))
        )

    @property
    def attention_layers(self) -> int:
        return self.keyless.count(False)

    @property
    def key_width(self) -> int:
        return max(kv_heads * head_dim for kv_heads, head_dim in self.head_sizes)

    def of_layer(self, index: int) -> "Architecture":
        """The same with the sizes of a layer, where those differ."""
        if not self.family.sizes_by_layer:
            return self
        kv_heads, head_dim = self.head_sizes[index]
        width = self.mlp_widths[index]
        return replace(
            self, kv_heads=kv_heads, head_dim=head_dim, rotated_dim=head_dim, intermediate_size=width
        )

    @property
    def recurrent_layers(self) -> int:
        return self.recurrent.count(True)


def read_architecture(checkpoint: Path, max_context: int | None = None) -> tuple[Architecture, Any]:
    """Read a checkpoint's config; returns transformers' config, too, for the rope parameters.

    Raises:
        UnsupportedCheckpoint: The decoder does not compute the family, or a feature of the checkpoint.
        ValueError: `max_context` exceeds the checkpoint's context.
    """
    architecture, config = translated(checkpoint, unscorable, from_config)
    context = context_limit(architecture.context_length, max_context)
    original = architecture.original_context
    if original is not None and context <= original:
        original = None
    return replace(architecture, context_length=context, original_context=original), of_texts(config)


def from_config(whole: Any) -> Architecture:
    """Translate a transformers config of one of `DECODER_FAMILIES`, or of one of `TEXT_TOWERS`."""
    config = of_texts(whole)
    family = DECODER_FAMILIES[config.model_type]
    check_sizes({"layers": config.num_hidden_layers})
    head_sizes = _head_sizes(family, config)
    head_dim = max(size for _, size in head_sizes)
    classifies, name = is_classifier(whole.architectures), (whole.architectures or [""])[0]

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

    groups = guard_labels(whole.to_dict())
    windows, recurrent = _windows(family, config), _recurrent(family, config)
    sources = _kv_sources(family, config)
    # Where all layers have experts, there may be no other size.
    inner = getattr(config, "intermediate_size", None) or config.moe_intermediate_size
    if family.convolved and config.block_auto_adjust_ff_dim:
        inner = int((config.block_ffn_dim_multiplier or 1) * int(2 * inner / 3))
        inner += -inner % config.block_multiple_of
    mlp_widths = tuple(
        2 * inner if source != index and config.use_double_wide_mlp else inner
        for index, source in enumerate(sources)
    )
    both_ways, modular = attends_both_ways(whole.to_dict()), getattr(whole, "modular", None)
    pooling = MODULAR_POOLINGS[modular] if modular else POOLINGS[value(family.pooling_key, "last")]
    if both_ways and not getattr(config, "is_causal", True):
        # transformers' bidirectional windows are distances.
        windows = tuple(None if window is None else window + 1 for window in windows)
    architecture = Architecture(
        family=family,
        labels=(sum(groups) or own_label_count(whole.architectures) or whole.num_labels)
        if classifies
        else None,
        guard_labels=groups,
        guard_width=whole.guard_inner_size if groups else 0,
        deep_head=name.endswith((REWARD_MODEL, PROCESS_REWARD_MODEL, RANKING)),
        scores_tokens=scores_tokens(whole.architectures),
        head_bias=name.endswith(TOKEN_CLASSIFIER) and getattr(whole, "token_classification_bias", True),
        vocab_size=config.vocab_size,
        context_length=context_length(config),
        original_context=original_context(config),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=max(mlp_widths),
        heads=config.num_attention_heads,
        kv_heads=max(kv_heads for kv_heads, _ in head_sizes),
        head_dim=head_dim,
        norm_eps=getattr(config, family.norm_eps_key) / residual_scale**2,
        norm_plus_one=family.norm_plus_one,
        qk_norm=flag(family.qk_norm),
        qkv_bias=flag(family.qkv_bias),
        output_bias=flag(family.output_bias),
        mlp_bias=flag(family.mlp_bias),
        activation=getattr(config, family.activation_key) if family.activation_key else "silu",
        embedding_scale=embedding_scale / residual_scale,
        attention_scale=1.0
        if family.sizes_by_layer
        else value(family.attention_multiplier_key, inverse_square**-0.5),
        attention_soft_cap=value(family.attention_soft_cap_key),
        logit_scale=1.0 if classifies and (modular or family.pooling_key is None) else logit_scale,
        # transformers caps neither a classifier's logits nor those of a Gemma 3 of texts and images.
        logit_soft_cap=None
        if classifies or whole.model_type == "gemma3"
        else value(family.logit_soft_cap_key),
        windows=windows,
        rope_kinds=_rope_kinds(family, config, windows),
        rotated_dim=int(head_dim * rotated_share),
        tied_head=bool(whole.tie_word_embeddings) and not classifies,
        experts=_experts(family, config),
        # Where attention and MLP read the same rows, those cannot be in fp8 for one of them alone.
        stored_in_fp8=in_fp8(text_config(whole.to_dict())) and not family.parallel_mlp,
        recurrent=recurrent,
        recurrence=_recurrence(family, config) if any(recurrent) else None,
        head_sizes=head_sizes,
        kv_sources=sources,
        mlp_widths=mlp_widths,
        own_input=value("hidden_size_per_layer_input") or 0 if family.sizes_by_layer else 0,
        own_vocabulary=value("vocab_size_per_layer_input", 0),
        keys_as_values=tuple(
            family.sizes_by_layer and config.attention_k_eq_v and source == index and windows[index] is None
            for index, source in enumerate(sources)
        ),
        pooling=pooling if is_read_whole(whole.to_dict()) else None,
        causal=not both_ways,
        modular=bool(modular),
        routed=tuple(_is_routed(family, config, index) for index in range(config.num_hidden_layers)),
    )
    check_sizes({name: getattr(architecture, name) for name in SIZES})
    _check_heads(architecture)
    return architecture


def _check_heads(a: Architecture) -> None:
    for kv_heads, _ in a.head_sizes:
        if a.heads % kv_heads:
            raise UnsupportedCheckpoint(
                f"{a.heads} attention heads cannot share {kv_heads} heads of keys and values"
            )
    if a.head_dim % 2:
        raise UnsupportedCheckpoint(f"head_dim is {a.head_dim}: rotary embeddings need an even one")
    if a.rotated_dim not in range(2, a.head_dim + 1, 2):
        raise UnsupportedCheckpoint(
            f"partial_rotary_factor rotates {a.rotated_dim} of {a.head_dim} dimensions, not an even number of them"
        )


def _head_sizes(family: DecoderFamily, config: Any) -> tuple[tuple[int, int], ...]:
    """Heads of keys and values, and their size, in each layer: all layers of a kind have the same."""
    if not family.sizes_by_layer:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return ((config.num_key_value_heads, head_dim),) * int(config.num_hidden_layers)
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    sizes = tuple((layer.num_key_value_heads, layer.head_dim) for layer in layers)
    for kind in set(config.layer_types):
        found = {size for size, own in zip(sizes, config.layer_types, strict=True) if own == kind}
        if len(found) > 1:
            raise UnsupportedCheckpoint(f"layers of the type {kind} differ in size (per_layer_config)")
    for kv_heads, head_dim in sizes:
        check_sizes({"num_key_value_heads": kv_heads, "head_dim": head_dim})
    return sizes


def _kv_sources(family: DecoderFamily, config: Any) -> tuple[int, ...]:
    """The layer whose keys and values each layer reads: the last num_kv_shared_layers have none of their own."""
    if not family.sizes_by_layer:
        return tuple(range(config.num_hidden_layers))
    kinds, own = config.layer_types, config.num_hidden_layers - config.num_kv_shared_layers
    last = {kind: index for index, kind in enumerate(kinds[: max(own, 0)])}
    if not config.num_kv_shared_layers >= 0 or any(kind not in last for kind in kinds):
        raise UnsupportedCheckpoint(
            f"num_kv_shared_layers is {config.num_kv_shared_layers}: no layer before them has keys for all of them"
        )
    return tuple(index if index < own else last[kind] for index, kind in enumerate(kinds))


def _experts(family: DecoderFamily, config: Any) -> ExpertShape | None:
    if (has := family.experts) is None or not getattr(config, has.enabled_key or "", True):
        return None
    per_token = getattr(config, has.per_token_key)
    normalise = has.normalise if isinstance(has.normalise, bool) else bool(getattr(config, has.normalise))
    if not 1 <= per_token <= getattr(config, has.count_key):
        raise UnsupportedCheckpoint(
            f"{has.per_token_key} is {per_token}, of {getattr(config, has.count_key)} experts"
        )
    return ExpertShape(
        count=getattr(config, has.count_key),
        width=getattr(config, has.width_key),
        activation=has.activation or getattr(config, family.activation_key),
        routing=Routing(per_token=per_token, normalise=normalise),
        shared_width=config.shared_expert_intermediate_size if has.shared else None,
    )


def _is_routed(family: DecoderFamily, config: Any, index: int) -> bool:
    if family.experts is None or family.sizes_by_layer:
        return False
    if not family.experts.dense_layers:
        return True
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
    served = "full_attention", "conv" if family.convolved else "linear_attention"
    if unknown := sorted(set(kinds) - set(served)):
        raise UnsupportedCheckpoint(f"layer type '{unknown[0]}' is none of {', '.join(served)}")
    return tuple(kind == served[1] for kind in kinds)


def _recurrence(family: DecoderFamily, config: Any) -> RecurrentShape:
    if family.convolved:
        check_sizes({"conv_L_cache": config.conv_L_cache})
        return RecurrentShape(0, 0, 0, 0, config.conv_L_cache, convolved=config.hidden_size)
    shape = RecurrentShape(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
    )
    check_sizes({name: size for name, size in vars(shape).items() if name != "convolved"})
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
